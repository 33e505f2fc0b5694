import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.parallel.group import Group, connect


class Ranks:
    """Ranks as threads of this process: real groups over real sockets, without a second's import for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = count()

    def run(self, size: int, work: Callable[[Group], Any]) -> list[Any]:
        meeting = self._folder / str(next(self._names))

        def rank(index: int) -> Any:
            return work(connect(meeting, index, size, torch.device("cpu"), 30))

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))


@pytest.fixture(scope="session")
def ranks(tmp_path_factory) -> Ranks:
    torch.set_num_threads(1)
    assert threading.active_count() < 64
    return Ranks(tmp_path_factory.mktemp("ranks"))
