"""Reduction of a step's gradients over ranks, and their norm."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed

from rondo.train.megatron.part import MegatronShard

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""
OF_OWN_HEADS = ("q_layernorm.weight", "k_layernorm.weight")
"""Weights replicated over tp, with gradients of a rank's own heads only."""


@torch.no_grad()
def add_up(part: MegatronShard) -> None:
    """Sums gradients over ranks with other heads or other rows."""
    part.reduce_gradients(OF_OWN_HEADS)


def clip(part: MegatronShard, limit: float) -> float:
    """Scales the gradients down to a norm of at most `limit` (0: no scaling); returns the norm before."""
    elsewhere = {id(parameter) for parameter in part.counted_elsewhere}
    found = {id(p): p.grad for p in part.parameters.values() if p.grad is not None}
    counted = [gradient for parameter, gradient in found.items() if parameter not in elsewhere]
    square = torch.nn.utils.get_total_norm(counted).float().square()
    for group in (part.group, part.masters.group, None if part.mesh is None else part.mesh.pp):
        if group is not None:
            dist.all_reduce(square, group=group)
    norm = math.sqrt(float(square))
    if limit > 0 and norm > limit:
        torch._foreach_mul_(list(found.values()), limit / (norm + 1e-6))
    return norm
