"""Models with waiting requests are loaded on demand."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rondo.base.errors import Unavailable
from rondo.gateway.queued import loader as loader_module
from rondo.gateway.queued.loader import LONGEST_PAUSE, QueueLoader


class Pending:
    def __init__(self, counts: dict[tuple[str, str], int]) -> None:
        self._counts = counts

    async def counts(self) -> dict[tuple[str, str], int]:
        return self._counts


class Queued:
    def __init__(self, counts: dict[tuple[str, str], int], served: Sequence[str]) -> None:
        self.queue = Pending(counts)
        self._served = served

    def served(self) -> set[str]:
        return set(self._served)


class Loads:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def offers(self, model: str) -> bool:
        return model != "unknown"

    async def ensure(self, model: str) -> bool:
        self.asked.append(model)
        if model == "failing":
            raise Unavailable("no memory")
        return True


def test_each_model_with_waiting_requests_that_no_engine_serves_is_loaded() -> None:
    async def main() -> list[str]:
        counts = {
            ("served", "queued"): 3,
            ("idle", "done"): 2,
            ("waiting", "queued"): 1,
            ("unknown", "queued"): 1,
            ("failing", "queued"): 1,
        }
        loads = Loads()
        loader = QueueLoader(cast(Any, Queued(counts, ["served"])), cast(Any, loads))
        await loader._check()
        await asyncio.sleep(0)
        await loader._check()
        await asyncio.sleep(0)
        await loader.close()
        return loads.asked

    asked = asyncio.run(main())
    assert set(asked) == {"waiting", "failing"}


def test_pauses_double_while_a_model_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(loader_module, "time", SimpleNamespace(monotonic=lambda: now))

    async def main() -> list[float]:
        nonlocal now
        loads, tried = Loads(), list[float]()
        loader = QueueLoader(cast(Any, Queued({("failing", "queued"): 1}, [])), cast(Any, loads))
        for second in range(2000):
            now = float(second)
            before = len(loads.asked)
            await loader._check()
            await asyncio.sleep(0)
            tried += [now] * (len(loads.asked) - before)
        await loader.close()
        return tried

    tried = asyncio.run(main())
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[:7] == [2, 4, 8, 16, 32, 64, 128]
    assert set(pauses[8:]) == {LONGEST_PAUSE}
