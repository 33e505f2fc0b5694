"""Crash or time-out of a grader as a separate outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.metrics import counter
from rondo.graders.score import Grader, Sample, Score, check_gradable

_log = get_logger(__name__)
_scores = counter("grader_scores", "Scores of graders by outcome.", ("grader", "outcome"))


@dataclass
class _Clock:
    """Time limit of a grader. The clock stops while the grader waits in a queue."""

    limit: asyncio.Timeout
    outer: _Clock | None
    waits: int = 0
    left: float = 0.0
    over: bool = False

    def pause(self) -> None:
        self.waits += 1
        when = self.limit.when()
        if self.waits == 1 and when is not None and not self._ended():
            self.left = when - asyncio.get_running_loop().time()
            self.limit.reschedule(None)
        if self.outer is not None:
            self.outer.pause()

    def go_on(self) -> None:
        self.waits -= 1
        if self.waits == 0 and not self._ended():
            self.limit.reschedule(asyncio.get_running_loop().time() + self.left)
        if self.outer is not None:
            self.outer.go_on()

    def _ended(self) -> bool:
        return self.over or self.limit.expired()


_clock: ContextVar[_Clock | None] = ContextVar("grader_clock", default=None)


@asynccontextmanager
async def waiting() -> AsyncIterator[None]:
    """Context for queueing, for example until a worker is free: the time is not charged to the grader's limit.

    Without it, a step of a thousand samples would time out because of its size alone. The wait itself must be bounded.
    """
    clock = _clock.get()
    if clock is None:
        yield
        return
    clock.pause()
    try:
        yield
    finally:
        clock.go_on()


@dataclass(frozen=True)
class Guarded:
    grader: Grader
    timeout_s: float
    name: str

    def check_sample(self, sample: Sample) -> None:
        check_gradable(self.grader, sample)

    async def score(self, sample: Sample) -> Score:
        score = await self._score(sample)
        _scores.labels(self.name, score.outcome).inc()
        return score

    async def _score(self, sample: Sample) -> Score:
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                clock = _Clock(limit, _clock.get())
                token = _clock.set(clock)
                asked = asyncio.ensure_future(self._asked(sample))
                try:
                    return await asyncio.shield(asked)
                finally:
                    clock.over = True
                    _clock.reset(token)
                    _leave(asked)
        except TimeoutError as error:
            late = f"{self.name} gave no score within {self.timeout_s:g} s"
            return Score("timeout", 0.0, detail=late if limit.expired() else f"{self.name}: {error}")
        except Exception as error:
            _log.exception("grader failed", extra={"grader": self.name})
            return Score("error", 0.0, detail=f"{self.name} failed: {type(error).__name__}: {error}")

    async def _asked(self, sample: Sample) -> Score:
        try:
            found = await self.grader.score(sample)
        except (SystemExit, KeyboardInterrupt) as error:  # raised from a task, they would end the event loop
            raise RuntimeError(f"it raised {error!r}") from error
        if not isinstance(found, Score):
            raise TypeError(f"it returned {str(found)[:100]!r}, which is no Score")
        return found


def _leave(asked: asyncio.Task[Score]) -> None:
    """Cancels the task without waiting for it: some graders ignore cancellation."""
    asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    asked.cancel()


def guarded(grader: Grader, timeout_s: float, name: str | None = None) -> Guarded:
    """Wraps `grader` so that it never raises and never exceeds its time limit.

    The limit applies where the grader awaits. A grader with long computations belongs in the pool (`pool.py`).
    """
    if timeout_s <= 0:
        raise ConfigError(f"a grader's timeout_s must be above 0, not {timeout_s}.")
    return Guarded(grader, timeout_s, name or type(grader).__name__)
