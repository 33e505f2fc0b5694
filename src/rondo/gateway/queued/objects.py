"""Files, batches, responses and conversations of a gateway, and tasks that drive batches and delete expired objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import sqlalchemy as sa

from rondo.base.errors import RondoError
from rondo.base.storage.home import home
from rondo.base.telemetry.log import get_logger
from rondo.control.objects.batches import SIGNAL, Batches
from rondo.control.objects.blobs import Blobs
from rondo.control.objects.completions import Completions
from rondo.control.objects.conversations import Conversations
from rondo.control.objects.driver import Drivers
from rondo.control.objects.files import Files
from rondo.control.objects.responses import Responses
from rondo.control.objects.uploads import Uploads
from rondo.control.store.signals import until_changed
from rondo.control.store.store import Store
from rondo.gateway.config import GatewayConfig
from rondo.gateway.queued.service import QueueService

log = get_logger("rondo.gateway.objects")

SWEEP_DUTY = "expired objects"
RETRY_SECONDS = 1.0


class Objects:
    """Created within the event loop that serves them."""

    def __init__(self, config: GatewayConfig, store: Store, queue: QueueService) -> None:
        self.config, self.store, self.queue = config, store, queue
        folder = config.files.folder
        self.blobs = Blobs(home() / "files" if folder is None else Path(folder))
        self.files = Files(store, self.blobs, config.files)
        self.uploads = Uploads(store, self.blobs, self.files)
        self.batches = Batches(store, self.blobs, config.batches)
        self.responses = Responses(store, queue.queue, config.responses)
        self.completions = Completions(store, config.responses)
        self.conversations = Conversations(store)
        target = queue.loading.target
        self._drivers = Drivers(queue.queue, self.blobs, queue.models, config.batches, config.files, target)
        self._tasks = [asyncio.create_task(_repeated(work)) for work in (self._drive, self._sweep)]

    async def _drive(self) -> None:
        with self.store.signals.waiting([SIGNAL]) as changed:
            self._drivers.start(await self.batches.running())
            await until_changed(changed, self.config.batches.poll_seconds)

    async def _sweep(self) -> None:
        seconds = self.config.files.sweep_seconds
        if await self.store.claim(SWEEP_DUTY, 3 * seconds):
            await self.files.sweep()
            await self.uploads.sweep()
            await self.batches.sweep()
            await self.responses.sweep()
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _repeated(work: Callable[[], Awaitable[None]]) -> None:
    """A failure is logged, and the work is tried again later."""
    while True:
        try:
            await work()
        except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
            log.warning(
                "objects are not maintained", extra={"error": f"{type(error).__name__}: {error}"[:300]}
            )
            await asyncio.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("objects are not maintained")
            await asyncio.sleep(RETRY_SECONDS)
