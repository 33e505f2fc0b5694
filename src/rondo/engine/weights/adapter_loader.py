"""Loading of adapters while the engine's steps continue, one after another in the order of the requests."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from rondo.base.errors import Overloaded, Unavailable
from rondo.engine.entrypoints.streams import answer
from rondo.engine.weights.adapters import Adapters, LoadedAdapter, unloaded

Job = Callable[[], None]


class AdapterLoader:
    """Loads adapters in a thread. `max_waiting` bounds the number of requests that wait for an adapter."""

    def __init__(self, adapters: Adapters, max_waiting: int) -> None:
        self.adapters = adapters
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False

    @asynccontextmanager
    async def holding(self, name: str | None) -> AsyncIterator[LoadedAdapter | None]:
        """Context manager that holds the loaded adapter with this name."""
        if name is None:
            yield None
            return
        adapter = self.adapters.held(name) or await self._hold(name)
        try:
            yield adapter
        finally:
            self.adapters.release(adapter)

    async def run(self, work: Job) -> None:
        """Runs `work` in the loader's thread, in order."""
        await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Ends the thread and wakes waiting requests; later requests are refused."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        self.adapters.wake()

    async def _hold(self, name: str) -> LoadedAdapter:
        """Loads and holds the adapter. A request without room waits here, so that the thread continues
        with other jobs."""
        with self._in_line():
            while True:
                future = self._submit(partial(self.adapters.hold, name))
                try:
                    return await asyncio.wrap_future(future)
                except asyncio.CancelledError:
                    future.add_done_callback(self._release)
                    raise
                except Overloaded:
                    await asyncio.wrap_future(self.adapters.room())
                if name not in self.adapters:
                    raise unloaded(name)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        with self._lock:
            if self._waiting >= self._max_waiting:
                raise Overloaded(
                    f"{self._waiting} requests wait for adapters to be loaded already. Try again later.",
                    code="queue_full",
                )
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _release(self, future: Future[LoadedAdapter]) -> None:
        """Releases the adapter of a cancelled request."""
        if not future.cancelled() and future.exception() is None:
            self.adapters.release(future.result())

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise Unavailable("the engine is shutting down.", code="shutting_down")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rondo-adapters", daemon=True)
                self._thread.start()
            self._jobs.put(partial(answer, future, work))
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
