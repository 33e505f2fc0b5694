"""Parameters that are stored as DTensors, and read as this rank's plain part of them.

FSDP, optimizers and checkpoints see the DTensors. A module's own code sees plain tensors, so it runs the kernels that
one process runs, without DTensor's dispatch of every operation.
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
"""What the module sees of what the rank has."""


def stored(parameter: nn.Parameter, over: DeviceMesh, dim: int | None) -> nn.Parameter:
    """A whole parameter, which every rank has, as a DTensor that is divided along `dim`, or not at all."""
    whole, rank, size = parameter.detach(), over.get_local_rank(), over.size()
    local, placement = whole, Replicate() if dim is None else Shard(dim)
    if dim is not None:
        part = -(-whole.shape[dim] // size)
        start = min(rank * part, whole.shape[dim])
        # A copy, so that the whole can go.
        local = whole.narrow(dim, start, min(part, whole.shape[dim] - start)).clone(
            memory_format=torch.contiguous_format
        )
    made = DTensor.from_local(
        local, over, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return nn.Parameter(made, parameter.requires_grad)


def read_locally(module: nn.Module, over: DeviceMesh, reads: Mapping[str, Read] | None = None) -> None:
    """From here on the module's own parameters that lie on `over` read as plain tensors: `reads[name]` of this rank's
    part, or all of it. Gradients of those that are not divided are taken for summands: ranks see other tokens, or
    go on with other heads.

    Between passes FSDP keeps the parameters divided further, on a larger mesh: then they read as they are.
    """
    become(module, _ReadsLocally)
    module.__dict__["_read_over"] = over
    module.__dict__["_reads"] = dict(reads or {})


def rows_of(start: int, count: int, dim: int = 0) -> Read:
    """The rank uses a part of what several have alike."""
    return partial(torch.narrow, dim=dim, start=start, length=count)


def nothing(x: Tensor) -> Tensor:
    """Another rank adds it. It still takes part, since all ranks reduce the same gradients."""
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
    """Puts a class before the module's own, as FSDP does."""
    module.__class__ = _combined(first, type(module))  # type: ignore[arg-type]


@cache
def _combined(first: type[nn.Module], then: type[nn.Module]) -> type[nn.Module]:
    return type(then.__name__, (first, then), {"__module__": then.__module__})
