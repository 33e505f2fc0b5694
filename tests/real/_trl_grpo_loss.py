"""GRPO's loss as TRL computes it: run with the interpreter of TRL's environment, a JSON batch in, a JSON answer out."""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer


def loss(case: dict[str, Any]) -> dict[str, Any]:
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor(case["mask"], dtype=torch.long)
    samples, length = mask.shape
    settings = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        model=SimpleNamespace(training=True),
        args=settings,
        beta=case["kl"],
        epsilon_low=case["clip_low"],
        epsilon_high=case["clip_high"],
        loss_type=case["loss_type"],
        max_completion_length=case["longest"],
        current_gradient_accumulation_steps=1,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": torch.zeros(samples, 1, dtype=torch.long),
        "prompt_mask": torch.ones(samples, 1, dtype=torch.long),
        "completion_ids": torch.zeros(samples, length, dtype=torch.long),
        "completion_mask": mask,
        "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
        "old_per_token_logps": torch.tensor(case["sampled"], dtype=torch.float64),
        "ref_per_token_logps": torch.tensor(case["reference"], dtype=torch.float64),
        "num_items_in_batch": mask.sum(),
    }
    value = GRPOTrainer._compute_loss(trainer, None, inputs)
    value.backward()
    assert logprobs.grad is not None
    clipped = trainer._metrics["train"]["clip_ratio/region_mean"][0]
    return {"loss": value.item(), "gradient": logprobs.grad.tolist(), "clip_share": clipped}


print(json.dumps([loss(case) for case in json.load(sys.stdin)]))
