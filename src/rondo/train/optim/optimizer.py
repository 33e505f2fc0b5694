"""Optimizer of a decoder's parameters, and gradient clipping."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rondo.parallel.tensor.own_part import local_of
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
    return _AdamWOfOwnParts(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=all(p.dtype.is_floating_point and p.device.type in ("cpu", "cuda") for p in trained.values()),
    )


class _AdamWOfOwnParts(torch.optim.AdamW):
    """AdamW whose steps see each rank's own part of a sharded tensor: elements are independent of each other. For
    DTensors, PyTorch would first search for placements of all of them together, which takes seconds for each mesh.

    Its methods are those within PyTorch's guards against torch.compile: they import the compiler, which takes 2.5
    seconds of CPU time and which nothing here uses.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return inspect.unwrap(torch.optim.AdamW.step)(self, closure)

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = map(local_of, tensors)
        return has_complex


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
        torch._foreach_mul_([local_of(gradient) for gradient in gradients], limit / (norm + 1e-6))
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
