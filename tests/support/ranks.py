"""Ranks as threads of this process: real groups over real sockets, without seconds of imports for each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import torch
import torch.distributed
from torch.distributed import ProcessGroup

from rondo.parallel.tensor.group import RankGroup, _gloo, connect
from support.waiting import scaled

dist: Any = torch.distributed
"""Its types are incomplete."""


class ThreadRanks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = count()

    def run(self, size: int, work: Callable[[RankGroup], Any], seconds: float = 60) -> list[Any]:
        meeting = self._meeting()

        def rank(index: int) -> Any:
            return work(connect(meeting, index, size, torch.device("cpu"), scaled(seconds)))

        return self._each(size, rank)

    def run_in_group(self, size: int, work: Callable[[ProcessGroup], Any], seconds: float = 60) -> list[Any]:
        """With the group as torch's functional collectives take it: found by its name, which each rank has its own of.
        A thread takes its own steps back, so gradients may cross ranks."""
        meeting, joined = self._meeting(), Barrier(size)

        def rank(index: int) -> Any:
            store = dist.FileStore(str(meeting), size)
            group = dist.ProcessGroup(store, index, size)
            gloo = dist.ProcessGroup.BackendType.GLOO
            backend = _gloo(store, index, size, timedelta(seconds=scaled(seconds)))
            group._register_backend(torch.device("cpu"), gloo, backend)
            group._set_default_backend(gloo)
            group._set_group_name(f"{meeting}-{index}")
            torch._C._distributed_c10d._register_process_group(group.group_name, group)
            joined.wait(
                scaled(seconds)
            )  # who leaves before the others are connected is one that has failed, to them
            try:
                return work(group)
            finally:
                torch._C._distributed_c10d._unregister_process_group(group.group_name)

        return self._each(size, rank)

    def _meeting(self) -> Path:
        return self._folder / str(next(self._names))

    def _each(self, size: int, rank: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))
