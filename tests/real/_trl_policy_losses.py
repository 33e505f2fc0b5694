"""Losses of policies as TRL computes them: run with the interpreter of TRL's environment, a JSON batch in, a JSON
answer out. Models are tables of log-probabilities and entropies.

What TRL computes on the way, inside of a method that also generates, is run from that method's own source.
"""

import inspect
import json
import math
import sys
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer, RLOOTrainer
from trl.trainer.utils import nanstd

ACCELERATOR = SimpleNamespace(
    num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
)


def part_of(method: Any, first: str, last: str) -> Any:
    """The lines from the one that has `first` in it up to that before `last`."""
    lines = inspect.getsource(method).splitlines()
    begin = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i > begin and last in line)
    return compile(textwrap.dedent("\n".join(lines[begin:end])), first, "exec")


CORRECTION = part_of(
    GRPOTrainer._generate_and_score_completions,
    "if self.use_vllm and self.vllm_importance_sampling_correction:",
    "# Compute the per-token log probabilities for the reference model",
)
LEAVE_ONE_OUT = part_of(
    RLOOTrainer._generate_and_score_completions,
    "# Include the KL penalty in the reward",
    "# Slice to keep only the local part of the data",
)


def table(case: dict[str, Any], name: str) -> torch.Tensor:
    return torch.tensor(case[name], dtype=torch.float64)


def common(case: dict[str, Any], logprobs: torch.Tensor, entropies: torch.Tensor) -> dict[str, Any]:
    return {
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logprobs, entropies, None),
        "accelerator": ACCELERATOR,
        "model": SimpleNamespace(training=True),
        "beta": case["kl"],
        "epsilon_low": case["clip_low"],
        "epsilon_high": case["clip_high"],
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
    }


def inputs_of(mask: torch.Tensor, advantages: torch.Tensor) -> dict[str, torch.Tensor]:
    samples, length = mask.shape
    return {
        "prompt_ids": torch.zeros(samples, 1, dtype=torch.long),
        "prompt_mask": torch.ones(samples, 1, dtype=torch.long),
        "completion_ids": torch.zeros(samples, length, dtype=torch.long),
        "completion_mask": mask,
        "advantages": advantages,
    }


def of_grpo(case: dict[str, Any], logprobs: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor) -> Any:
    correction, old = case.get("correction"), table(case, "old")
    kind, low, high = correction or (None, None, None)
    trainer = SimpleNamespace(
        **common(case, logprobs, entropies),
        args=SimpleNamespace(
            delta=case.get("dual_clip"),
            use_bias_correction_kl=case.get("kl_unbiased", False),
            steps_per_generation=1,
        ),
        loss_type=case["loss_type"],
        max_completion_length=case["longest"],
        current_gradient_accumulation_steps=1,
        importance_sampling_level=case.get("level", "token"),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=correction is not None,
        vllm_importance_sampling_mode=kind,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
        _entropy_bonus_enabled="entropy" in case,
        use_adaptive_entropy=False,
        entropy_coef=case.get("entropy", 0.0),
    )
    inputs = inputs_of(mask, table(case, "advantages")) | {
        "old_per_token_logps": old,
        "ref_per_token_logps": table(case, "reference"),
        "num_items_in_batch": mask.sum(),
    }
    if correction is not None:
        names = {
            "self": trainer,
            "torch": torch,
            "math": math,
            "completion_mask": mask,
            "tool_mask": None,
            "old_per_token_logps": old,
            "sampling_per_token_logps": table(case, "sampled"),
        }
        exec(CORRECTION, names)
        inputs["importance_sampling_ratio"] = names["vllm_importance_sampling_ratio"]
    value = GRPOTrainer._compute_loss(trainer, None, inputs)
    return value, trainer._metrics["train"], []


def of_rloo(case: dict[str, Any], logprobs: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor) -> Any:
    trainer = SimpleNamespace(**common(case, logprobs, entropies), normalize_advantages=False)
    old = table(case, "old")
    names = {
        "self": trainer,
        "torch": torch,
        "nanstd": nanstd,
        "gather": lambda x: x,
        "completion_mask": mask,
        "old_per_token_logps": old,
        "ref_per_token_logps": table(case, "reference"),
        "rewards": table(case, "rewards"),
        "num_generations": case["samples"],
    }
    exec(LEAVE_ONE_OUT, names)
    inputs = inputs_of(mask, names["advantages"]) | {"old_logps": (old * mask).sum(1)}
    value = RLOOTrainer._compute_loss(trainer, None, inputs)
    return value, trainer._metrics["train"], names["advantages"].tolist()


def answer(case: dict[str, Any]) -> dict[str, Any]:
    logprobs, entropies = (table(case, name).requires_grad_() for name in ("logprobs", "entropies"))
    mask = torch.tensor(case["mask"], dtype=torch.long)
    loss = of_rloo if case["loss_type"] == "rloo" else of_grpo
    value, metrics, advantages = loss(case, logprobs, entropies, mask)
    value.backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (logprobs, entropies)]
    return {
        "loss": value.item(),
        "gradient": torch.stack(gradients).tolist(),
        "advantages": advantages,
        "metrics": {name: values[0] for name, values in metrics.items()},
    }


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
