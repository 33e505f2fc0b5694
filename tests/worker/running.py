"""A worker in a thread of its own, and a gateway with one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rondo.worker.config import WorkerConfig
from rondo.worker.engines import HttpEngine
from rondo.worker.link import GatewayLink
from rondo.worker.worker import Flops, Worker

NAMES = iter(range(10**9))


class RunningWorker:
    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.worker, self.loop, self.thread = worker, loop, threading.current_thread()
        self._stopping: asyncio.Task[None] | None = None

    def stop(self, seconds: float = 5.0) -> None:
        """Stops the worker and waits for the end of its thread. The loop may have ended, or end before this call runs
        in it, if another call has stopped the worker."""

        def begin() -> None:
            self._stopping = self.loop.create_task(self.worker.stop(seconds))

        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(begin)
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def worker_of(
    gateway: str, engine: str, key: str | None = None, flops: Flops | None = None, **settings: Any
) -> Iterator[RunningWorker]:
    config = WorkerConfig(gateway=gateway, engine=engine, wait_seconds=1.0, drain_seconds=5.0, **settings)
    started: list[RunningWorker] = []
    ready = threading.Event()

    async def main() -> None:
        link = GatewayLink(gateway, key, config.name or f"test:{next(NAMES)}")
        worker = Worker(link, HttpEngine(engine, None), config, flops)
        started.append(RunningWorker(worker, asyncio.get_running_loop()))
        worker.start()
        ready.set()
        try:
            await worker.wait()
        finally:
            await worker.stop()
            await worker.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield started[0]
    finally:
        started[0].stop()
