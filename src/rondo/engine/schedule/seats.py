"""How many requests may begin to run: the three ways of batching. One that has begun keeps its seat to its end."""

from __future__ import annotations

from typing import Literal

from rondo.engine.schedule.request import Request

Batching = Literal["continuous", "dynamic", "static"]


class BatchingPolicy:
    def __init__(self, count: int, batching: Batching) -> None:
        self._count = count
        self._batching = batching
        self._free = count
        self._waited = 0

    def open(self, idle: bool, waiting: int) -> None:
        """Before requests are let in: a batch that is not continuous opens when nothing runs, and a static one only
        when it is full or nobody has come since the last step."""
        if self._batching == "continuous":
            self._free = self._count
        elif idle:
            more_come = self._batching == "static" and waiting != self._waited
            self._free = 0 if more_come and waiting < self._count else min(waiting, self._count)
            self._waited = waiting

    def admits(self, request: Request) -> bool:
        return request.first_cached >= 0 or self._free > 0

    def take(self, request: Request, cached: int) -> None:
        """It runs; at its first time with `cached` tokens found."""
        if request.first_cached < 0:
            request.first_cached = cached
            self._free -= 1
