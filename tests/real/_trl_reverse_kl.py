"""The reverse divergence from a teacher as TRL's GKD computes it: run with the interpreter of TRL's environment, a JSON
batch in, a JSON answer out."""

import json
import sys
from typing import Any

import torch
from trl.experimental.gkd import GKDTrainer


def answer(case: dict[str, Any]) -> dict[str, Any]:
    student = torch.tensor(case["student"], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(case["teacher"], dtype=torch.float64)
    loss = GKDTrainer.generalized_jsd_loss(
        student[None], teacher[None], beta=1.0, temperature=case["temperature"], reduction="sum"
    )
    loss.backward()
    assert student.grad is not None
    return {"loss": loss.item(), "gradient": student.grad.tolist()}


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
