"""The loss and the gradient of TRL's own trainers on one batch: run with the interpreter of TRL's environment. Reads
{"sft": {...}, "talks": {...}, "dpo": {...}}, each with records and folders of models, and writes what each came to."""

import json
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

EVERY: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "max_length": 256,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
}


def load(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def trainer_of(kind: str, asked: dict[str, Any], folder: str) -> Any:
    records = Dataset.from_list(asked["records"])
    more = {"output_dir": folder, "per_device_train_batch_size": len(records), **EVERY}
    common = {
        "model": load(asked["model"]),
        "train_dataset": records,
        "processing_class": AutoTokenizer.from_pretrained(asked["model"]),
    }
    if kind != "dpo":
        return SFTTrainer(args=SFTConfig(completion_only_loss=True, **more), **common)
    return DPOTrainer(
        args=DPOConfig(beta=asked["beta"], **more), ref_model=load(asked["reference"]), **common
    )


def first_step(kind: str, asked: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(kind, asked, folder)
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        found = {"loss": loss.item(), "grad_norm": float(torch.nn.utils.get_total_norm(gradients))}
        told = trainer._metrics["train"]
        names = {"rewards/margins": "margin", "rewards/accuracies": "accuracy"}
        return found | {ours: told[theirs][-1] for theirs, ours in names.items() if theirs in told}


print(json.dumps({kind: first_step(kind, asked) for kind, asked in json.load(sys.stdin).items()}))
