"""Loads models for which requests wait in the durable queue and that no engine serves."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import sqlalchemy as sa

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.gateway.queued.service import QueueService
from rondo.gateway.sources.loading import Loading

log = get_logger("rondo.gateway.queued")

CHECK_SECONDS = 2.0
LONGEST_PAUSE = 300.0
"""Between two attempts to load a model that cannot be loaded; the first pause is `CHECK_SECONDS`, and each is twice as
long as the one before."""


@dataclass(frozen=True)
class _Pause:
    seconds: float
    until: float


class QueueLoader:
    """Created within the event loop that serves it."""

    def __init__(self, queue: QueueService, loading: Loading) -> None:
        self.queue, self.loading = queue, loading
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, _Pause] = {}
        """Of models whose latest load failed."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        tasks = [self._task, *self._loads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._check()
            except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
                log.warning(
                    "waiting models are not loaded", extra={"error": f"{type(error).__name__}: {error}"[:300]}
                )

    async def _check(self) -> None:
        counts = await self.queue.queue.counts()
        waiting = {model for (model, state), number in counts.items() if state == "queued" and number}
        now = time.monotonic()
        self._pauses = {model: pause for model, pause in self._pauses.items() if model in waiting}
        paused = {model for model, pause in self._pauses.items() if pause.until > now}
        self._loads = {model: task for model, task in self._loads.items() if not task.done()}
        for model in waiting - self.queue.served() - paused - self._loads.keys():
            if self.loading.offers(model):
                self._loads[model] = asyncio.create_task(self._load(model))

    async def _load(self, model: str) -> None:
        try:
            await self.loading.ensure(model)
            self._pauses.pop(model, None)
        except RondoError as error:  # the requests stay in the queue
            last = self._pauses.get(model)
            seconds = CHECK_SECONDS if last is None else min(2 * last.seconds, LONGEST_PAUSE)
            self._pauses[model] = _Pause(seconds, time.monotonic() + seconds)
            log.warning(
                "a model with waiting requests is not loaded",
                extra={"model": model, "error": error.message, "next_attempt_seconds": seconds},
            )
