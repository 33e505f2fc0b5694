"""What the routes need of HTTP: bounded bodies, event streams, and noticing that a client has left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rondo.base.errors import RondoError
from rondo.server.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia, error_body, log

T = TypeVar("T")


BODY_SECONDS = 60.0
"""The longest wait for the next part of a body."""


async def read_body(request: Request, limit: int) -> bytes:
    """What is known to be too large is refused before it is sent; what turns out to be, as soon as it does."""
    declared = request.headers.get("content-length", "")
    too_large = BodyTooLarge(f"the request body is larger than {limit} bytes.", code="body_too_large")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS) as patience:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
                patience.reschedule(asyncio.get_running_loop().time() + BODY_SECONDS)
    except TimeoutError:
        raise BodyTimeout(
            f"nothing more of the request body came for {BODY_SECONDS:g} s.", code="body_timeout"
        ) from None
    return b"".join(parts)


def check_json(request: Request) -> None:
    """A web page may send other types to any server it can reach without asking the browser's user first."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMedia(
            f"the body must be JSON, sent with 'Content-Type: application/json'; its type is {given!r}.",
            code="unsupported_media_type",
        )


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client hangs up first, `work` is cancelled."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancel(task)
        await _cancel(gone)


async def gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EventStream:
    """A response of server-sent events; stops its source as soon as the client is gone.

    The status line waits for the first event, so that a request refused by the engine is an ordinary error.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _cancel(sender)
            await _cancel(gone)

    async def _send(self, send: Send) -> None:
        async with aclosing(self.events) as events:
            started = False
            try:
                async for event in events:
                    if not started:
                        await send(START)
                        started = True
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except RondoError as error:
                if not started:
                    raise
                body = error_body(error.message, error.kind, error.param, error.code)
                await send({"type": "http.response.body", "body": event_of(body), "more_body": True})
            except Exception:
                if not started:
                    raise
                log.exception("a stream failed")
                body = error_body("internal error; the server's log has the details.", "internal_error")
                await send({"type": "http.response.body", "body": event_of(body), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}
DONE = b"data: [DONE]\n\n"


def event_of(body: object, kind: str | None = None) -> bytes:
    """`kind` names the event, for clients that look at its name."""
    # ASCII, because some clients take other Unicode separators for the end of a line.
    data = b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
    return data if kind is None else f"event: {kind}\n".encode() + data


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    elif not task.cancelled():
        task.exception()
