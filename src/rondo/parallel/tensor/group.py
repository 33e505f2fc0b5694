"""The ranks that together hold one model, and their collectives: sum, gather and agreement."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""
MOST_SAID = 1024
"""Largest number of bytes of a text in `say`."""


class RankGroup:
    """A separate process group: torch's default one belongs to the training code of this process."""

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._backend = backend

    def add(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place of x; bitwise equal on all ranks."""
        if x.numel():
            self._backend.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, part: int, whole: int) -> Tensor:
        """All-gather of columns [T, <=part] of each rank to [T, whole]. Every rank but the last has `part` columns."""
        rows, own = x.shape
        if own < part:
            x = torch.nn.functional.pad(x, (0, part - own))
        parts = x.new_empty(self.size * rows, part)
        self._backend._allgather_base(parts, x.contiguous()).wait()
        *full, last = parts.view(self.size, rows, part).unbind()
        return torch.cat([*full, last[:, : whole - part * (self.size - 1)]], dim=-1)

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        least = torch.tensor([number], device=self.device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._backend.allreduce([least], options).wait()
        return int(least)

    def say(self, text: str) -> list[str]:
        """Texts of all ranks, truncated to MOST_SAID bytes."""
        own = torch.zeros(MOST_SAID, dtype=torch.uint8)
        data = torch.tensor(list(text.encode()[:MOST_SAID]), dtype=torch.uint8)
        own[: len(data)] = data
        all_said = torch.empty(self.size * MOST_SAID, dtype=torch.uint8, device=self.device)
        self._backend._allgather_base(all_said, own.to(self.device)).wait()
        parts = all_said.cpu().view(self.size, MOST_SAID)
        return [bytes(part.tolist()).rstrip(b"\0").decode(errors="ignore") for part in parts]

    def abort(self) -> None:
        """Aborts collectives that wait for a rank that is gone. On a CPU, the closed connection ends them."""
        if self.device.type == "cuda":
            self._backend.abort()


def connect(meeting: Path, rank: int, size: int, device: torch.device, seconds: float) -> RankGroup:
    """Joins the group through a rendezvous file; the ranks are processes on one machine. `seconds` limits every wait
    for another rank, here or later.
    """
    store = dist.FileStore(str(meeting), size)
    store.set_timeout(timedelta(seconds=seconds))
    make = _nccl if device.type == "cuda" else _gloo
    return RankGroup(make(store, rank, size, timedelta(seconds=seconds)), rank, size, device)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupGloo._Options()
    # The default is the address of the host's name.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
