"""Streams between requests and their readers, and how the engine's thread wakes the readers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Future
from typing import TypeVar

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.engine.schedule.request import Request

log = get_logger("rondo.engine")
T = TypeVar("T")


class RequestStream:
    """Wakes the one coroutine that reads a request."""

    __slots__ = ("error", "event", "loop", "samples", "whole")

    def __init__(self, loop: asyncio.AbstractEventLoop, whole: bool = False) -> None:
        self.loop = loop
        self.whole = whole
        self.event = asyncio.Event()
        self.samples: Sequence[Request] = ()
        self.error: Exception | None = None

    async def news(self) -> None:
        """Waits until there may be new tokens, or raises the stream's error."""
        await self.event.wait()
        self.event.clear()
        if self.error is not None:
            raise self.error

    def fail(self, error: Exception) -> None:
        """Passes an error to the reader; called in the engine's thread."""
        self.error = error
        _wake([self])


class Streams(dict[str, RequestStream]):
    """Streams by request id."""

    def wake(self, advanced: Set[str], ended: Set[str]) -> None:
        """Wakes the readers of these requests; a reader of whole samples is woken only by the end of one."""
        asked = ((self.get(request_id), request_id in ended) for request_id in advanced | ended)
        _wake([stream for stream, end in asked if stream is not None and (end or not stream.whole)])

    def fail(self, error: RondoError) -> None:
        """Passes the error to every reader and removes all streams."""
        for stream in self.values():
            stream.error = error
        _wake(self.values())
        self.clear()


def _wake(streams: Iterable[RequestStream]) -> None:
    """One call into each event loop, for any number of requests."""
    events: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = defaultdict(list)
    for stream in streams:
        events[stream.loop].append(stream.event)
    for loop, ready in events.items():
        try:
            loop.call_soon_threadsafe(_set_all, ready)
        except RuntimeError:
            log.debug("an event loop closed while requests of it were running")


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


def answer(future: Future[T], work: Callable[[], T]) -> None:
    """Runs `work` and sets the future's result or exception, unless the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def resolve_all(waiters: list[Future[None]], error: RondoError | None) -> None:
    """Resolves all waiters with None or with an error, and clears the list."""
    for waiter in waiters:
        if not waiter.set_running_or_notify_cancel():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
    waiters.clear()
