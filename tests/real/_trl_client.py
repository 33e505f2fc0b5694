"""Rollouts and a GRPO step of TRL with its own client of a server. TRL imports vLLM, so vLLM's environment runs it.

Reads {"trl": site-packages, "url": .., "model": folder, "calls": [[method, arguments], ..], "prompts": [..]} and writes
the results of the calls and of the step.
"""

import json
import sys
import tempfile
from typing import Any

request = json.load(sys.stdin)
sys.path.append(request["trl"])

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from trl.generation.vllm_client import VLLMClient  # noqa: E402

client = VLLMClient(base_url=request["url"])
SAMPLES = 4


def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """As TRL's `VLLMGeneration` requests them in the server mode."""
    found = client.generate(prompts[::SAMPLES], n=SAMPLES, max_tokens=8)
    found["prompt_ids"] = [ids for ids in found["prompt_ids"] for _ in range(SAMPLES)]
    trainer.sampled = found
    return found


def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


def sampler_error(model: Any, found: dict[str, Any]) -> float:
    """Largest difference between the server's log-probabilities and the model's."""
    worst = 0.0
    for prompt, ids, logprobs in zip(
        found["prompt_ids"], found["completion_ids"], found["logprobs"], strict=True
    ):
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
        worst = max(worst, float((own - torch.tensor(logprobs)).abs().max()))
    return worst


def grpo_step(folder: str) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            per_device_train_batch_size=SAMPLES * len(request["prompts"]),
            num_generations=SAMPLES,
            max_completion_length=8,
            max_steps=1,
            learning_rate=1e-3,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in request["prompts"]]),
        processing_class=AutoTokenizer.from_pretrained(request["model"]),
        rollout_func=rollouts,
    )
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    log = trainer.state.log_history[0]
    changed = sum(not torch.equal(before[name], weight) for name, weight in model.named_parameters())
    before_step = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32)
    with torch.no_grad():
        error = sampler_error(before_step, trainer.sampled)
    return {
        "sampler_error": error,
        "grad_norm": log["grad_norm"],
        "reward": log["reward"],
        "completion_ids": trainer.sampled["completion_ids"],
        "changed": changed / len(before),
    }


calls = [getattr(client, name)(**arguments) for name, arguments in request["calls"]]
with tempfile.TemporaryDirectory() as scratch:
    print(json.dumps({"calls": calls, "step": grpo_step(scratch)}))
