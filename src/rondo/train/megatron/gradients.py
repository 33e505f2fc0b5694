"""Reduction of a step's gradients over ranks, and their norm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from rondo.train.megatron.part import MegatronShard

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""
OF_OWN_HEADS = ("q_layernorm.weight", "k_layernorm.weight")
"""Weights replicated over tp, with gradients of a rank's own heads only."""


@torch.no_grad()
def add_up(part: MegatronShard, mesh: Mesh | None) -> None:
    """Sums gradients over ranks with other heads or other rows."""
    if mesh is None:
        return
    for name, parameter in part.parameters.items():
        if parameter.grad is None:  # a rank without rows
            parameter.grad = torch.zeros_like(parameter)
        if mesh.degrees.tp > 1 and name.endswith(OF_OWN_HEADS):
            dist.all_reduce(parameter.grad, group=mesh.tp)
        if mesh.degrees.dp > 1:
            dist.all_reduce(parameter.grad, group=mesh.dp)


def clip(part: MegatronShard, limit: float) -> float:
    """Scales the gradients down to a norm of at most `limit` (0: no scaling); returns the norm before."""
    elsewhere = {id(parameter) for parameter in part.counted_elsewhere}
    found = {id(p): p.grad for p in part.parameters.values() if p.grad is not None}
    counted = [gradient for parameter, gradient in found.items() if parameter not in elsewhere]
    square = torch.nn.utils.get_total_norm(counted).float().square()
    if part.group is not None:
        dist.all_reduce(square, group=part.group)
    norm = math.sqrt(float(square))
    if limit > 0 and norm > limit:
        torch._foreach_mul_(list(found.values()), limit / (norm + 1e-6))
    return norm
