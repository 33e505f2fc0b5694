"""The ranks that hold one model together, and the two things they do with each other: add and gather."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """A process group of its own: it is not torch's default one, which belongs to whoever trains in this process."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._backend = backend

    def add(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place of x; the same bits on each."""
        if x.numel():
            self._backend.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, part: int, whole: int) -> Tensor:
        """Columns [T, <=part] of each rank -> [T, whole]. Every rank but the last has `part` of them."""
        rows, own = x.shape
        if own < part:
            x = torch.nn.functional.pad(x, (0, part - own))
        parts = x.new_empty(self.size * rows, part)
        self._backend._allgather_base(parts, x.contiguous()).wait()
        *full, last = parts.view(self.size, rows, part).unbind()
        return torch.cat([*full, last[:, : whole - part * (self.size - 1)]], dim=-1)

    def abort(self) -> None:
        """Ends what waits for a rank that will not come. On a CPU its closed connection does."""
        if isinstance(self._backend, getattr(dist, "ProcessGroupNCCL", ())):
            self._backend.abort()


def connect(meeting: Path, rank: int, size: int, device: torch.device, seconds: float) -> Group:
    """Joins the group that meets in a file; the ranks are processes of one machine. No rank waits longer than `seconds`
    for another, here or later."""
    store = dist.FileStore(str(meeting), size)
    store.set_timeout(timedelta(seconds=seconds))
    make = _nccl if device.type == "cuda" else _gloo
    return Group(make(store, rank, size, timedelta(seconds=seconds)), rank, size)


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # By default it listens on whatever address the host's name has.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
