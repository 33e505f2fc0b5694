"""Ranks as threads of this process: real groups over real sockets, without seconds of imports for each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import torch

from rondo.parallel.group import Group, connect


class ThreadRanks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = count()

    def run(self, size: int, work: Callable[[Group], Any], seconds: float = 60) -> list[Any]:
        meeting = self._folder / str(next(self._names))

        def rank(index: int) -> Any:
            return work(connect(meeting, index, size, torch.device("cpu"), seconds))

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))
