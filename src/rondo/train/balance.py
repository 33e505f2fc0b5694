"""Balancing experts without a loss: those that were chosen too often become a little less likely to be.

A router's `correction` takes part in the choice and not in the weights, so gradients say nothing of it. Its entry goes
up by `rate` where an expert had fewer tokens than the mean, and down where it had more (DeepSeek-V3, 2.1.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rondo.models.decoder import Decoder
from rondo.models.parts import Router

if TYPE_CHECKING:
    from rondo.parallel.mesh import Mesh


class Balance:
    """Counts the choices of every router from one optimizer step to the next; of tokens that fill up a row as well."""

    def __init__(self, model: Decoder, rate: float, mesh: Mesh | None = None) -> None:
        self._rate, self._mesh = rate, mesh
        self._counts = {
            module: torch.zeros(module.spec.num_experts, device=model.device)
            for module in model.modules()
            if isinstance(module, Router)
        }
        for router in self._counts:
            router.register_forward_hook(self._count)

    @torch.no_grad()
    def step(self, *, correct: bool) -> dict[str, float]:
        """Corrects, or forgets the step; says how many times the mean the busiest expert of a layer here had."""
        if not self._counts:
            return {}
        counts = torch.stack(list(self._counts.values()))
        if self._mesh is not None:
            counts = self._mesh.total(counts)
        mean = counts.mean(1, keepdim=True)
        for router, changes in zip(self._counts, self._rate * (mean - counts).sign(), strict=True):
            if router.correction is not None and self._rate and correct:
                router.correction.add_(_placed(changes.to(router.correction.dtype), router.correction))
        for own in self._counts.values():
            own.zero_()
        return {"expert_load_max": float((counts.amax(1, keepdim=True) / mean.clamp(min=1)).max())}

    def _count(self, router: Any, inputs: object, output: tuple[Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            chosen = output[1].flatten()
            self._counts[router] += torch.bincount(chosen, minlength=router.spec.num_experts)


def _placed(whole: Tensor, like: Tensor) -> Tensor:
    """As `like` lies: its part, where it is divided."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
