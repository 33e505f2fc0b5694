"""Expert load balancing without a loss: overloaded experts become less likely.

A router's `correction` affects the choice of experts but not their weights, so it has no gradient. Its entry increases
by `rate` if an expert had fewer tokens than the mean, and decreases if it had more (DeepSeek-V3, 2.1.2).
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
    """Counts every router's choices between optimizer steps: for a row's own tokens, and in the last layer only for
    tokens that predict, since a single process computes no others there. Padding does not count, so that corrections do
    not depend on the layout.
    """

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
        """Updates the corrections if `correct`, and resets the counts. Returns the highest load of an expert in any
        layer, relative to the mean.
        """
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
        """Mask of the row's own tokens among the router's inputs."""
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
            real = real.chunk(self._mesh.degrees.tp)[self._mesh.tp_rank]  # a rank dispatches its own tokens
        return real


def _is_backward() -> bool:
    """Whether a backward pass is running: the choices of a recomputed layer are counted already."""
    return bool(torch._C._current_graph_task_id() != -1)


def _placed(whole: Tensor, like: Tensor) -> Tensor:
    """`whole`, sharded as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
