"""Batching policy: how many requests may start to run. A started request retains its seat to the end."""

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
        """Opens seats before admission. Except in continuous batching, a batch opens when nothing runs; a static one
        also waits until it is full or no request has arrived since the last step."""
        if self._batching == "continuous":
            self._free = self._count
        elif idle:
            more_come = self._batching == "static" and waiting != self._waited
            self._free = 0 if more_come and waiting < self._count else min(waiting, self._count)
            self._waited = waiting

    def admits(self, request: Request) -> bool:
        return request.first_cached >= 0 or self._free > 0

    def take(self, request: Request, cached: int) -> None:
        """Records that the request runs. At its first start it occupies a seat, with `cached` tokens from the prefix
        cache."""
        if request.first_cached < 0:
            request.first_cached = cached
            self._free -= 1
