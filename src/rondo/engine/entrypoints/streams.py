"""Who reads which request, and how the engine's thread wakes them."""

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
        """Waits until there may be something to read."""
        await self.event.wait()
        self.event.clear()
        if self.error is not None:
            raise self.error

    def fail(self, error: Exception) -> None:
        """From the engine's thread: its reader gets the error."""
        self.error = error
        _wake([self])


class Streams(dict[str, RequestStream]):
    """By the request's id."""

    def wake(self, advanced: Set[str], ended: Set[str]) -> None:
        """Who reads samples whole is woken by the end of one alone."""
        asked = ((self.get(request_id), request_id in ended) for request_id in advanced | ended)
        _wake([stream for stream, end in asked if stream is not None and (end or not stream.whole)])

    def fail(self, error: RondoError) -> None:
        """Every reader gets the error, and there are none any more."""
        for stream in self.values():
            stream.error = error
        _wake(self.values())
        self.clear()


def _wake(streams: Iterable[RequestStream]) -> None:
    """One call into each event loop, whatever the number of requests."""
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
    """Does the work and says what came of it, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def resolve_all(waiters: list[Future[None]], error: RondoError | None) -> None:
    """Answers all who wait, with nothing or with an error; there are none any more."""
    for waiter in waiters:
        if not waiter.set_running_or_notify_cancel():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
    waiters.clear()
