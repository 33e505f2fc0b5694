"""The engine in a thread of its own, for servers: requests come and go on an event loop, steps go on beside it.

Nothing is queued between the two. A request's tokens are in the request; the thread only says that there are more,
and each reader takes what is new since it last looked. A slow reader gets bigger chunks, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import TypeVar

from rondo.base.errors import InvalidRequest, Overloaded, RondoError, Unavailable
from rondo.base.log import get_logger
from rondo.client.engine import PauseMode
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.engine.core import EngineCore
from rondo.engine.metrics import EngineMetrics
from rondo.engine.output import SampleReader, TextSource
from rondo.engine.request import Request

log = get_logger("rondo.engine")
T = TypeVar("T")


class _Stream:
    """Wakes the one coroutine that reads a request."""

    __slots__ = ("error", "event", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.event = asyncio.Event()
        self.error: RondoError | None = None


class AsyncEngine:
    def __init__(self, core: EngineCore, tokenizer: TextSource | None = None, model_name: str = "") -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.metrics = EngineMetrics(core, model_name)
        self._streams: dict[str, _Stream] = {}
        self._inbox: list[Callable[[], None]] = []
        self._held: list[Callable[[], None]] = []
        self._condition = threading.Condition()
        self._paused = False
        self._holding = False
        self._draining = False
        self._stopping = False
        self._ended = False
        self._failure: RondoError | None = None
        self._idle_waiters: list[Future[None]] = []
        self._thread = threading.Thread(target=self._run, name="rondo-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> RondoError | None:
        """Why the engine cannot serve any more; None while it can."""
        return self._failure

    @property
    def ready(self) -> bool:
        return not (self._failure or self._draining or self._stopping or self._paused or self.core.updating)

    @property
    def weight_version(self) -> int:
        return self.core.weight_version

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Streams the request's samples. Leaving the iterator early aborts the request."""
        self._check_open(request)
        stream = _Stream(asyncio.get_running_loop())
        try:
            samples = await self._ask(lambda: self._open(request, stream), held=True)
            readers = [SampleReader(sample, self.tokenizer) for sample in samples]
            while readers:
                await stream.event.wait()
                stream.event.clear()
                if stream.error is not None:
                    raise stream.error
                for reader in readers:
                    chunk = reader.read()
                    if chunk is not None:
                        self._end_at_stop_string(reader, chunk)
                        yield chunk
                readers = [reader for reader in readers if not reader.done]
        finally:
            self._post(lambda: self._leave(request.id, stream))

    async def abort(self, request_id: str) -> None:
        await self._ask(lambda: self._close(request_id))

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two steps. keep: running requests stay; wait: they finish first; abort: they end."""
        if mode == "wait":
            waiter: Future[None] = Future()
            self._post(lambda: self._hold_until_idle(waiter))
            await asyncio.wrap_future(waiter)
        await self._ask(lambda: self._pause(abort=mode == "abort"))

    async def resume(self) -> None:
        await self._ask(self._resume)

    async def start_weight_update(self) -> None:
        await self._ask(self.core.start_weight_update)

    async def finish_weight_update(self, version: int) -> None:
        await self._ask(lambda: self.core.finish_weight_update(version))

    async def reset_prefix_cache(self) -> None:
        await self._ask(self.core.reset_prefix_cache)

    async def drain(self, seconds: float) -> None:
        """Takes no more requests and lets the running ones finish; after `seconds` they end as aborted."""
        self._draining = True
        waiter: Future[None] = Future()
        self._post(lambda: self._idle_waiters.append(waiter))
        try:
            await asyncio.wait_for(asyncio.wrap_future(waiter), seconds)
        except TimeoutError:
            log.warning("requests were cut off while draining", extra={"seconds": seconds})
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Ends the thread; whatever still runs ends as aborted."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(timeout=60)

    def _check_open(self, request: GenerateRequest) -> None:
        if self._failure is not None:
            raise self._failure
        if self._draining or self._stopping:
            raise Unavailable("the engine is shutting down.", code="shutting_down")
        if request.sampling.stop and self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer: use stop_token_ids.", param="stop")

    def _end_at_stop_string(self, reader: SampleReader, chunk: TokenChunk) -> None:
        request = reader.request
        if reader.done and request.finish_reason is None:
            request.stop_reason = chunk.stop_reason
            self._post(lambda: self._close(request.id, request.index, stopped=True))

    async def _ask(self, work: Callable[[], T], held: bool = False) -> T:
        """Runs `work` in the engine's thread, between two steps."""
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        self._post(lambda: self._held.append(run) if held and self._holding else run())
        return await asyncio.wrap_future(answer)

    def _post(self, command: Callable[[], None]) -> None:
        with self._condition:
            if not self._ended:
                self._inbox.append(command)
                self._condition.notify()
                return
        command()

    # From here on: in the engine's thread.

    def _run(self) -> None:
        while not self._stopping:
            self._take_commands()
            if not self._can_step():
                continue
            try:
                step = self.core.step()
            except Exception:
                log.exception("a step failed")
                self._fail(
                    Unavailable("the engine failed; its log says why. Restart it.", code="engine_failed")
                )
                continue
            now = time.monotonic()
            self.metrics.observe(step, now)
            self._wake({request.id for request in step.advanced})
            for request in step.finished:
                self._forget(request)
        self._fail(Unavailable("the engine was stopped.", code="shutting_down"))
        with self._condition:
            self._ended = True
        self._take_commands()

    def _take_commands(self) -> None:
        with self._condition:
            while not (self._inbox or self._can_step() or self._stopping or self._waiters_are_due()):
                self._condition.wait()
            inbox, self._inbox = self._inbox, []
        for command in inbox:
            command()
        if self._waiters_are_due():
            for waiter in self._idle_waiters:
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    def _can_step(self) -> bool:
        blocked = self._paused or self._failure is not None or self.core.updating
        return self.core.has_work and not blocked

    def _waiters_are_due(self) -> bool:
        return bool(self._idle_waiters) and not self.core.has_work

    def _open(self, request: GenerateRequest, stream: _Stream) -> list[Request]:
        if self._failure is not None:
            raise self._failure
        try:
            samples = self.core.add(request)
        except Overloaded:
            self.metrics.rejected += 1
            raise
        self._streams[request.id] = stream
        return samples

    def _leave(self, request_id: str, stream: _Stream) -> None:
        """The reader is gone; whatever the engine still holds for it ends."""
        if self._streams.get(request_id) is stream:
            self._close(request_id)

    def _close(self, request_id: str, index: int | None = None, stopped: bool = False) -> None:
        now = time.monotonic()
        for request in self.core.abort(request_id, index, "stop" if stopped else "abort"):
            self.metrics.observe_end(request, now)
            self._wake({request.id})
            self._forget(request)

    def _forget(self, request: Request) -> None:
        if not self.core.knows(request.id):
            self._streams.pop(request.id, None)

    def _wake(self, ids: set[str]) -> None:
        """One call into each event loop, whatever the number of requests."""
        events: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = defaultdict(list)
        for request_id in ids:
            stream = self._streams.get(request_id)
            if stream is not None:
                events[stream.loop].append(stream.event)
        for loop, ready in events.items():
            try:
                loop.call_soon_threadsafe(_set_all, ready)
            except RuntimeError:
                log.debug("an event loop closed while requests of it were running")

    def _hold_until_idle(self, waiter: Future[None]) -> None:
        self._holding = True
        self._idle_waiters.append(waiter)

    def _pause(self, abort: bool) -> None:
        self._paused = True
        if abort:
            for request_id in list(self._streams):
                self._close(request_id)

    def _resume(self) -> None:
        self._paused = self._holding = False
        held, self._held = self._held, []
        for command in held:
            command()

    def _fail(self, error: RondoError) -> None:
        self._failure = self._failure or error
        for stream in self._streams.values():
            stream.error = self._failure
        self.core.abort_all()
        self._wake(set(self._streams))
        self._streams.clear()
        self._resume()


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
