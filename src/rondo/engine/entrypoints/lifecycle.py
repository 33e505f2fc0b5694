"""Pause, hold and sleep state: when the engine may step. All of it runs in the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from rondo.base.errors import Conflict, RondoError
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.streams import answer, resolve_all


@dataclass(frozen=True, eq=False)
class Hold:
    """A caller waiting for started requests to finish; `then` runs next unless the caller was cancelled."""

    waiter: Future[None]
    then: Callable[[], None]


class Lifecycle:
    def __init__(self, core: EngineCore, close_all: Callable[[], None]) -> None:
        self.core = core
        self.paused = False
        self._close_all = close_all
        self._holds: list[Hold] = []

    @property
    def serving(self) -> bool:
        return not self.paused and self.core.whole and not self.core.scheduler.holding

    @property
    def can_step(self) -> bool:
        if self.paused or not self.core.whole:
            return False
        scheduler = self.core.scheduler
        return scheduler.in_progress if scheduler.holding else self.core.has_work

    @property
    def hold_is_due(self) -> bool:
        return bool(self._holds) and not self.core.scheduler.in_progress

    def pause(self, abort: bool) -> None:
        self.paused = True
        self._stop(abort, "another pause stopped the requests that this one waited for.")

    def resume(self) -> None:
        self.paused = False
        self.end_holds(Conflict("the engine was resumed while a pause waited for its requests."))

    def sleep(self, level: int, abort: bool) -> None:
        """Sleep and pause are independent: waking does not resume, resuming does not wake."""
        self.core.sleep(level)
        self._stop(abort, "the engine fell asleep with the requests that this pause waited for.")

    def hold(self, hold: Hold) -> None:
        """Lets started requests continue and starts no others."""
        scheduler = self.core.scheduler
        if (self.paused or not self.core.whole) and scheduler.in_progress:
            raise Conflict(
                "requests are stopped in the middle and cannot finish: resume or wake the engine, or finish the "
                "weight update, before a pause that waits; or pause with 'abort'."
            )
        self.core.hold()
        self._holds.append(hold)

    def withdraw(self, hold: Hold, undo: Callable[[], None]) -> None:
        """Withdraws a hold whose caller was cancelled, and undoes its effect if it had already taken place."""
        if hold in self._holds:
            self._holds.remove(hold)
            if not self._holds:
                self.core.release()
        elif hold.waiter.done() and not hold.waiter.cancelled() and hold.waiter.exception() is None:
            undo()

    def settle_holds(self) -> None:
        self.core.release()
        holds, self._holds = self._holds, []
        for hold in holds:
            answer(hold.waiter, hold.then)

    def end_holds(self, error: RondoError) -> None:
        self.core.release()
        resolve_all([hold.waiter for hold in self._holds], error)
        self._holds = []

    def _stop(self, abort: bool, why: str) -> None:
        if abort:
            self._close_all()
        elif self._holds and self.core.scheduler.in_progress:
            self.end_holds(Conflict(why))
