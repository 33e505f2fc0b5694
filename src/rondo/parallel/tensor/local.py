"""Parameters stored as DTensors and read as this rank's plain local part.

FSDP, optimizers and checkpoints use the DTensors. A module's own code uses plain tensors, so it runs the same kernels
as a single process, without DTensor's dispatch of every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

Read = Callable[[Tensor], Tensor]
"""Function from the rank's local part to the tensor that the module's code reads."""


def stored(parameter: nn.Parameter, over: DeviceMesh, dim: int | None) -> nn.Parameter:
    """Converts a whole parameter, equal on every rank, to a DTensor that is sharded along `dim` or replicated."""
    whole, rank, size = parameter.detach(), over.get_local_rank(), over.size()
    local, placement = whole, Replicate() if dim is None else Shard(dim)
    if dim is not None:
        part = -(-whole.shape[dim] // size)
        start = min(rank * part, whole.shape[dim])
        # A copy, so that the whole parameter can be freed.
        local = whole.narrow(dim, start, min(part, whole.shape[dim] - start)).clone(
            memory_format=torch.contiguous_format
        )
    made = DTensor.from_local(
        local, over, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return nn.Parameter(made, parameter.requires_grad)


def read_locally(module: nn.Module, over: DeviceMesh, reads: Mapping[str, Read] | None = None) -> None:
    """Makes the module's own parameters on the mesh `over` read as plain tensors: `reads[name]` of this rank's part, or
    all of it. Gradients of replicated parameters are treated as summands: tokens or later heads differ between ranks.

    Between passes FSDP shards the parameters further, on a larger mesh: then they read as stored.
    """
    become(module, _ReadsLocally)
    module.__dict__["_read_over"] = over
    module.__dict__["_reads"] = dict(reads or {})


def rows_of(start: int, count: int, dim: int = 0) -> Read:
    """The rank reads a range of a replicated parameter."""
    return partial(torch.narrow, dim=dim, start=start, length=count)


def nothing(x: Tensor) -> Tensor:
    """Zeros, for a parameter that another rank adds. It still takes part in the graph, since all ranks reduce the same
    gradients.
    """
    return x * 0.0


class _ReadsLocally(nn.Module):
    _read_over: DeviceMesh
    _reads: dict[str, Read]

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, DTensor) and found.device_mesh == self._read_over:
            local = _plain(found)
            read = self._reads.get(name)
            return local if read is None else read(local)
        return found


def _plain(parameter: DTensor) -> Tensor:
    placements = [Partial() if each.is_replicate() else each for each in parameter.placements]
    return parameter.to_local(grad_placements=placements)


def become(module: nn.Module, first: type[nn.Module]) -> None:
    """Prepends a base class to the module's class, as FSDP does."""
    module.__class__ = _combined(first, type(module))  # type: ignore[arg-type]


@cache
def _combined(first: type[nn.Module], then: type[nn.Module]) -> type[nn.Module]:
    return type(then.__name__, (first, then), {"__module__": then.__module__})
