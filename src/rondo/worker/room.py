"""Number of requests that fit into an engine: by its free KV memory where it reports it, else a fixed number. And how
often requests found no room."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from rondo.worker.engines import EngineGone, WorkedEngine

FIRST_TOKENS = 512.0
"""Estimated tokens of a request, until requests have ended."""
WEIGHT = 0.05
"""Weight of the latest request in the estimate."""
SPARE = 8
"""Requests beyond those that fit: they wait in the engine, so that a slot is never empty."""
HAND_BACK_SECONDS = 600.0
"""A request that was not handed back for so long has probably ended elsewhere."""
_LINE = re.compile(rb"^(?:vllm|rondo):(\w+)(\{[^\n]*\})? ([0-9.eE+]+)$", re.M)
_FACT = re.compile(rb'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class EngineLoad:
    running: int
    waiting: int
    free_tokens: int | None
    """Tokens that the free KV blocks can hold; None if the engine does not report it."""


class HandBacks:
    """How often each request was handed back lately."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}
        """With the time of the latest one, in its order."""

    def add(self, id: str, now: float) -> int:
        count = self._counts.pop(id, (0, now))[0] + 1
        self._counts[id] = count, now
        while now - self._counts[oldest := next(iter(self._counts))][1] > HAND_BACK_SECONDS:
            del self._counts[oldest]
        return count

    def forget(self, id: str) -> None:
        self._counts.pop(id, None)

    def __len__(self) -> int:
        return len(self._counts)


class Room:
    def __init__(self, engine: WorkedEngine, concurrency: int) -> None:
        self.engine, self.concurrency = engine, concurrency
        self.tokens = FIRST_TOKENS

    def note(self, tokens: int) -> None:
        """A request of so many tokens has ended."""
        self.tokens += WEIGHT * (tokens - self.tokens)

    async def free(self, held: int) -> int:
        """How many requests may be leased while the worker holds `held`."""
        most = self.concurrency - held
        if most <= 0:
            return 0
        load = await self.load()
        if load is None:
            return most
        if load.free_tokens is None:
            return min(most, max(0, SPARE + most - load.waiting)) if load.waiting > SPARE else most
        coming = max(0, held - load.running - load.waiting)
        fit = int(load.free_tokens / max(1.0, self.tokens)) + SPARE - load.waiting - coming
        return max(0, min(most, fit))

    async def load(self) -> EngineLoad | None:
        """From `/load`, else from the metrics; None if the engine has neither."""
        try:
            reply = await self.engine.call("GET", "/load")
            found = _of_load(reply.body) if reply.status == 200 else None
            if found is not None and found.free_tokens is not None:
                return found
            reply = await self.engine.call("GET", "/metrics")
        except EngineGone:
            return None
        return (_of_metrics(reply.body) if reply.status == 200 else None) or found


class _Load(msgspec.Struct):
    running: int
    waiting: int
    kv_free_tokens: int | None = None


def _of_load(body: bytes) -> EngineLoad | None:
    try:
        read = msgspec.json.decode(body, type=_Load)
    except msgspec.DecodeError:
        return None
    return EngineLoad(read.running, read.waiting, read.kv_free_tokens)


def _of_metrics(body: bytes) -> EngineLoad | None:
    values: dict[bytes, float] = {}
    facts: dict[bytes, bytes] = {}
    for name, labels, value in _LINE.findall(body):
        values[name] = values.get(name, 0.0) + float(value)
        if name == b"cache_config_info":
            facts = dict(_FACT.findall(labels))
    try:
        free = (
            int(facts[b"num_gpu_blocks"]) * int(facts[b"block_size"]) * (1 - values[b"kv_cache_usage_perc"])
        )
        return EngineLoad(
            int(values[b"num_requests_running"]), int(values[b"num_requests_waiting"]), int(free)
        )
    except (KeyError, ValueError):
        return None
