"""Optimizer of a decoder's parameters, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rondo.train.config import OptimConfig
from rondo.train.optim.muon import MuonAndAdamW

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from rondo.parallel.ranks.mesh import Mesh


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    if config.optimizer == "muon":
        return MuonAndAdamW(model, config, adamw)
    return adamw({name: p for name, p in model.named_parameters() if p.requires_grad}, config)


def adamw(trained: Mapping[str, nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    """AdamW without weight decay of norms and biases, including stacked experts' biases. Parameters have the model's
    order in each group.
    """
    decayed = {name: p.ndim >= 2 and not name.endswith("bias") for name, p in trained.items()}
    groups = [
        {"params": [p for name, p in trained.items() if decayed[name]], "weight_decay": config.weight_decay},
        {"params": [p for name, p in trained.items() if not decayed[name]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=all(p.dtype.is_floating_point and p.device.type in ("cpu", "cuda") for p in trained.values()),
    )


def clip_gradients(
    parameters: Iterable[Tensor],
    limit: float,
    mesh: Mesh | None = None,
    counted_elsewhere: Iterable[Tensor] = (),
) -> float:
    """Scales the gradients down to a norm of at most `limit` (0: no scaling); returns the norm before. Weights in
    `counted_elsewhere` are scaled too, but another rank counts them in the norm.
    """
    elsewhere = {id(p) for p in counted_elsewhere}
    found = [(p.grad, id(p) not in elsewhere) for p in parameters if p.grad is not None]
    gradients = [gradient for gradient, _ in found]
    counted = [gradient for gradient, here in found if here]
    norm = _norm(counted) if mesh is None else _norm_over_ranks(counted, mesh)
    if limit > 0 and norm > limit:
        torch._foreach_mul_(gradients, limit / (norm + 1e-6))
    return norm


def _norm(gradients: list[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def _norm_over_ranks(gradients: list[Tensor], mesh: Mesh) -> float:
    """Norm over all ranks' parts; replicated parts count once. Squares are summed over the stage's ranks, then over
    stages.
    """
    from torch.distributed.tensor import DTensor

    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    by_copies: dict[int, list[Tensor]] = {}
    for gradient in gradients:
        assert isinstance(gradient, DTensor)
        by_copies.setdefault(_copies(gradient), []).append(gradient.to_local())
    for copies, parts in by_copies.items():
        squares += torch.nn.utils.get_total_norm(parts).double() ** 2 / copies
    return math.sqrt(sum(mesh.said_by_stages(float(mesh.total(squares)))))


def _copies(of: DTensor) -> int:
    """Number of ranks with the same part."""
    sizes = of.device_mesh.shape
    return math.prod(size for size, place in zip(sizes, of.placements, strict=True) if place.is_replicate())
