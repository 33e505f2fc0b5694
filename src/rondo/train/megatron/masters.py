"""Trained weights behind Megatron-Core's gradient buffers: fp32 masters, and shards of them for ZeRO-1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rondo.parallel.collectives import gather_equal

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh


class Masters(nn.Module):
    """Weights that the optimizer updates, by Megatron-Core's names. They share the module's memory, or are fp32 copies
    if the module computes in a narrower type. With ZeRO-1 each dp rank has a shard of every flattened weight:
    Megatron-Core's buffers reduce-scatter the gradients and all-gather the weights.
    """

    def __init__(self, module: Any, mesh: Mesh | None, *, mixed: bool, sharded: bool) -> None:
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

        super().__init__()
        config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=mixed, use_distributed_optimizer=sharded, check_for_nan_in_grad=False
        )
        self._ddp: Any = DistributedDataParallel(module.config, config, module)
        self.mixed, self.group = mixed, mesh.dp if mesh is not None and sharded else None
        self._rank = 0 if mesh is None else mesh.dp_rank
        self.own: dict[str, Any] = dict(module.named_parameters())
        """Weights of the module."""
        self._shards = {} if self.group is None else self._divide(self.group.size())
        self._masters = {name: nn.Parameter(self._master(name, p)) for name, p in self.own.items()}

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._masters.items())

    @torch.no_grad()
    def refresh(self) -> None:
        """Updates the module with the masters' values."""
        if self.mixed:
            for name, parameter in self.own.items():
                self.part(name, parameter.data).copy_(self._masters[name])
        if self.group is not None:
            self._ddp.start_param_sync(force_sync=True)

    def reduce_gradients(self, over: Sequence[tuple[Any, str]]) -> None:
        """Sums gradients over dp ranks and passes them to the masters; `over` are further groups and their weights."""
        for group, name in over:
            torch.distributed.all_reduce(self.own[name].main_grad, group=group)
        self._ddp.finish_grad_sync()
        for name, master in self._masters.items():
            master.grad = self.part(name, self.own[name].main_grad)

    def clear_gradients(self) -> None:
        self._ddp.zero_grad_buffer()

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's shard of a weight, as a view."""
        if self.group is None:
            return whole
        start, end = self._shards[name][self._rank]
        flat = whole.view(-1)[start:end]
        return flat if whole.ndim < 2 else flat[None]  # two axes: the optimizer decays matrices only

    def whole(self, name: str, part: Tensor) -> Tensor:
        """Inverse of `part`; all dp ranks must take part."""
        if self.group is None or not part.ndim:
            return part
        own = self.own[name]
        if part is self._masters[name] and not self.mixed:
            return own.detach()  # type: ignore[no-any-return]
        sizes = [end - start for start, end in self._shards[name]]
        return gather_equal(part.detach().view(-1), self.group, sizes).view(own.shape)

    def _master(self, name: str, parameter: Tensor) -> Tensor:
        part = self.part(name, parameter.detach())
        return part.float() if self.mixed else part

    def _divide(self, ranks: int) -> dict[str, list[tuple[int, int]]]:
        """Range of each dp rank in each flattened weight: buckets are divided into equal shards."""
        found = {}
        names = {parameter: name for name, parameter in self.own.items()}
        for buffer in self._ddp.buffers:
            for parameter, (start, end, bucket) in buffer.param_index_map.items():
                begin = buffer.buckets[bucket].offset
                size = buffer.buckets[bucket].grad_data.numel() // ranks
                cuts = [min(max(begin + rank * size, start), end) - start for rank in range(ranks + 1)]
                found[names[parameter]] = list(pairwise(cuts))
        return found
