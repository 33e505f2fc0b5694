"""A peer's side of train.py: whole training steps on request, each with its time and its loss.

Run with the interpreter of the peer's environment; it knows nothing of ours.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
DECAY = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def reply(**answer: Any) -> None:
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


def asked() -> int:
    """How many steps to take; nobody asks any more: the end."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return int(json.loads(line)["steps"])


def load(settings: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, settings["dtype"])
    return AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=dtype, attn_implementation="sdpa", use_cache=False
    )


def each(settings: dict[str, Any]) -> Iterator[Tensor]:
    batches = torch.from_numpy(np.load(settings["batches"]))
    while True:
        yield from batches


def loop(step: Any) -> None:
    """`step()` takes a whole one, and gives its loss."""
    reply(ready=True)
    while True:
        seconds, losses = [], []
        for _ in range(asked()):
            begin = time.perf_counter()
            losses.append(float(step()))
            seconds.append(time.perf_counter() - begin)
        reply(seconds=seconds, losses=losses)


def compiled(settings: dict[str, Any]) -> None:
    model = load(settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], fused=True, **DECAY)
    batches = each(settings)

    @torch.compile
    def loss_of(tokens: Tensor) -> Tensor:
        logits = model(tokens[:, :-1]).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step() -> Tensor:
        loss = loss_of(next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    loop(step)


def trainer(settings: dict[str, Any]) -> None:
    """Its labels are its inputs, which it shifts itself: a batch is so many tokens longer by one each."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    documents = np.load(settings["batches"])
    size = documents.shape[1]
    data = [{"input_ids": row, "labels": row} for row in torch.from_numpy(documents).flatten(0, 1)]

    class OneByOne(TrainerCallback):
        def __init__(self) -> None:
            self.left = 0
            self.seconds: list[float] = []
            self.losses: list[float] = []
            self.began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if self.left == 0:
                if self.seconds:
                    reply(seconds=self.seconds, losses=self.losses)
                self.left, self.seconds, self.losses = asked(), [], []
                self.began = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                now = time.perf_counter()
                self.losses.append(float(logs["loss"]))
                self.seconds.append(now - self.began)
                self.began, self.left = now, self.left - 1

    arguments = TrainingArguments(
        output_dir=settings["output"],
        per_device_train_batch_size=size,
        max_steps=1_000_000,
        learning_rate=settings["lr"],
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.1,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        dataloader_num_workers=0,
        train_sampling_strategy="sequential",
        seed=0,
    )
    made = Trainer(load(settings), arguments, train_dataset=data)
    made.add_callback(OneByOne())
    reply(ready=True)
    made.train()


def litgpt(settings: dict[str, Any]) -> None:
    """The body of its `pretrain.fit`, with its model, its loss and its Fabric."""
    import lightning
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
    from litgpt.utils import chunked_cross_entropy
    from safetensors.torch import load_file

    with open(f"{settings['model']}/config.json") as file:
        hf = json.load(file)
    config = Config(
        name="small",
        block_size=hf["max_position_embeddings"],
        vocab_size=hf["vocab_size"],
        padded_vocab_size=hf["vocab_size"],
        n_layer=hf["num_hidden_layers"],
        n_head=hf["num_attention_heads"],
        n_query_groups=hf["num_key_value_heads"],
        n_embd=hf["hidden_size"],
        intermediate_size=hf["intermediate_size"],
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=hf["rms_norm_eps"],
        mlp_class_name="LLaMAMLP",
        rope_base=hf["rope_theta"],
    )
    fabric = lightning.Fabric(
        accelerator="cpu", devices=1, precision="bf16-true" if settings["dtype"] == "bfloat16" else "32-true"
    )
    weights: dict[str, Tensor] = {}
    copy_weights_hf_llama(config, {}, weights, load_file(f"{settings['model']}/model.safetensors"))
    model = GPT(config)
    model.load_state_dict(weights)
    model.max_seq_length = hf["max_position_embeddings"]
    model = fabric.setup(torch.compile(model))
    optimizer = fabric.setup_optimizers(
        torch.optim.AdamW(model.parameters(), lr=settings["lr"], fused=True, **DECAY)
    )
    batches = each(settings)

    def step() -> Tensor:
        tokens = next(batches)
        logits = model(tokens[:, :-1].contiguous())
        loss = chunked_cross_entropy(logits, tokens[:, 1:].contiguous())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    loop(step)


if __name__ == "__main__":
    told = json.loads(sys.stdin.readline())
    torch.set_num_threads(told["threads"])
    with redirect_stdout(sys.stderr):
        {"compiled": compiled, "trainer": trainer, "litgpt": litgpt}[told["side"]](told)
