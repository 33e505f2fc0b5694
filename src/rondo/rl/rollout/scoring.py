"""Scoring in parallel with generation: graders run in an event loop of their own thread.

A grader that fails or exceeds its time limit returns a score with that error (`graders.guarded`). A grader that
computes without awaiting blocks its event loop, and no timeout inside the loop can stop it. Such a loop is abandoned:
its pending samples have a timeout as their score, and a new loop replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait

from rondo.base.telemetry.log import get_logger
from rondo.graders import Grader, Sample, Score, guarded

log = get_logger(__name__)

GRACE_SECONDS = 2.0
"""Seconds beyond a grader's time limit after which its event loop is abandoned."""

ENDING_SECONDS = 1.0
"""Seconds for running graders to end after the scorer is closed."""


class RolloutScorer:
    def __init__(self, grader: Grader, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._name = getattr(grader, "name", None) or type(grader).__name__
        self._grader = guarded(grader, timeout_s, self._name)
        self._finished = 0
        self._asked, self._since, self._worked = 0, 0.0, 0.0
        self._counting = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = self._start()

    @property
    def at_work(self) -> float:
        """Total seconds in which at least one sample was being scored."""
        self._count(0)
        return self._worked

    def submit(self, samples: Sequence[Sample]) -> list[Future[Score]]:
        """Queue samples for scoring without blocking. Thread-safe."""
        futures: list[Future[Score]] = [Future() for _ in samples]
        self._count(len(futures))
        for future in futures:
            future.add_done_callback(lambda _: self._count(-1))
        self._loop.call_soon_threadsafe(self._begin, list(zip(samples, futures, strict=True)))
        return futures

    def wait(self, futures: Sequence[Future[Score]]) -> list[Score]:
        """Scores in the order of the futures. As long as any score arrives within the limit, the wait continues."""
        left, loop = {future for future in futures if not future.done()}, self._loop
        while left:
            done, left = wait(left, self.timeout_s + GRACE_SECONDS, FIRST_COMPLETED)
            if not done and not self._answers(loop):
                self._give_up(left, loop)
                break
        return [future.result() for future in futures]

    async def score(self, sample: Sample) -> Score:
        """Score one sample from another event loop."""
        loop = self._loop
        (future,) = self.submit([sample])
        while True:
            finished = self._finished
            try:
                async with asyncio.timeout(self.timeout_s + GRACE_SECONDS):
                    return await asyncio.shield(asyncio.wrap_future(future))
            except TimeoutError:
                if finished == self._finished and not await asyncio.to_thread(self._answers, loop):
                    self._give_up({future}, loop)
                    return future.result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _count(self, more: int) -> None:
        with self._counting:
            moment = time.perf_counter()
            self._worked += moment - self._since if self._asked else 0.0
            self._since, self._asked = moment, self._asked + more

    def _begin(self, work: list[tuple[Sample, Future[Score]]]) -> None:
        for sample, future in work:
            task = asyncio.ensure_future(self._one(sample, future))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, sample: Sample, future: Future[Score]) -> None:
        try:
            score = await self._grader.score(sample)
        except asyncio.CancelledError:  # no caller cancels this task, so the grader cancelled it
            score = Score("error", 0.0, detail=f"{self._name} cancelled its own task")
        self._finished += 1
        _settle(future, score)

    def _answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the event loop is responsive. An idle or awaiting loop is responsive; a blocked loop is not."""
        heard = threading.Event()
        loop.call_soon_threadsafe(heard.set)
        return heard.wait(GRACE_SECONDS)

    def _give_up(self, late: set[Future[Score]], loop: asyncio.AbstractEventLoop) -> None:
        for future in late:
            _settle(future, Score("timeout", 0.0, detail=f"{self._name} held up its thread"))
        if loop is self._loop:
            log.warning("a grader holds up its thread and is left behind", extra={"grader": self._name})
            loop.call_soon_threadsafe(loop.stop)
            self._loop = self._start()

    def _start(self) -> asyncio.AbstractEventLoop:
        self._tasks = set()
        loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(loop,), name="rondo-graders", daemon=True).start()
        return loop


def _settle(future: Future[Score], score: Score) -> None:
    """Set the result of a future unless it already has one."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(score)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=ENDING_SECONDS))
    finally:
        loop.close()
