"""Balancing experts without a loss: those that were chosen too often become a little less likely to be.

A router's `correction` takes part in the choice and not in the weights, so gradients say nothing of it. Its entry goes
up by `rate` where an expert had fewer tokens than the mean, and down where it had more (DeepSeek-V3, 2.1.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rondo.models.decoder import Decoder
from rondo.models.parts import ExpertRouter
from rondo.parallel.pipeline.stage import row_in_passing

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh


class Balance:
    """Counts the choices of every router from one optimizer step to the next: of a row's own tokens, and in the last
    layer of those that are predicted from, since one process asks for no others. What fills rows up counts nowhere, so
    that corrections do not depend on the layout."""

    def __init__(self, model: Decoder, rate: float, mesh: Mesh | None = None) -> None:
        self._rate, self._mesh = rate, mesh
        self._last = getattr(getattr(model.layers[-1], "mlp", None), "router", None)
        self._counts = {
            module: torch.zeros(module.spec.num_experts, device=model.device)
            for module in model.modules()
            if isinstance(module, ExpertRouter)
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
        if torch.is_grad_enabled() and not _is_backward():
            chosen = output[1]
            count = self.own_tokens(router, chosen).to(self._counts[router].dtype)
            self._counts[router].index_add_(0, chosen.flatten(), count[:, None].expand_as(chosen).flatten())

    def own_tokens(self, router: ExpertRouter, chosen: Tensor) -> Tensor:
        """Of the tokens that the router was given, whether they are a row's own."""
        row = row_in_passing()
        if row is None:
            return chosen.new_ones(len(chosen))
        divided = self._mesh is not None and self._mesh.degrees.tp > 1
        if router is self._last and not divided:
            return row.real[row.rows]
        real = row.real
        if router is self._last:
            real = real & torch.zeros_like(real).index_fill(0, row.rows, True)
        if self._mesh is not None and divided and self._mesh.experts is not None:
            real = real.chunk(self._mesh.degrees.tp)[self._mesh.tp_rank]  # a rank sends its own tokens
        return real


def _is_backward() -> bool:
    """Whether autograd is on its way back: a layer that computes again has been counted."""
    return bool(torch._C._current_graph_task_id() != -1)


def _placed(whole: Tensor, like: Tensor) -> Tensor:
    """As `like` lies: its part, where it is divided."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
