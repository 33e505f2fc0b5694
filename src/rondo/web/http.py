"""HTTP parts of the routes: bounded bodies, event streams, and detection of client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rondo.base.errors import RondoError
from rondo.base.telemetry.account import current
from rondo.client.protocol.wire import WireModel
from rondo.web.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia, error_body, log

T = TypeVar("T")


BODY_SECONDS = 60.0
"""The longest wait for the next part of a body, unless the settings say otherwise."""
SLOWEST_BODY = 4096
"""Bytes a second: a body with a lower mean rate is aborted, regardless of the gaps between its parts."""


async def read_body(
    request: Request,
    limit: int,
    idle_seconds: float = BODY_SECONDS,
    hold: Callable[[int], None] = lambda size: None,
) -> bytes:
    """Refuses a body over `limit`, before it is read if its size is declared. `hold` is called with the number of bytes
    read so far, and raises if the server's memory is exhausted."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts, size, more = [], 0, True
    now = asyncio.get_running_loop().time
    begun = now()
    try:
        async with asyncio.timeout(idle_seconds) as patience:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                hold(size)
                parts.append(part)
                if more:
                    latest = begun + idle_seconds + size / SLOWEST_BODY
                    patience.reschedule(min(now() + idle_seconds, latest))
    except TimeoutError:
        raise BodyTimeout(
            f"nothing more of the request body came for {idle_seconds:g} s (server.body_seconds), or it came more "
            f"slowly than {SLOWEST_BODY} bytes a second.",
            code="body_timeout",
        ) from None
    return b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body is larger than {limit} bytes. Send it in several requests, or raise the server's setting "
        "server.max_body_bytes.",
        code="body_too_large",
    )


def note_ignored(body: WireModel) -> None:
    """Puts the fields of the request that have no effect into the response's header `x-rondo-ignored`."""
    account = current()
    if account is not None:
        account.ignored = body.ignored()


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in `Authorization: Bearer <key>`; the scheme has no case. Empty where there is none."""
    scheme, _, key = dict(headers).get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def check_json(request: Request) -> None:
    """A web page may send other types to any server it can reach without asking the browser's user first."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMedia(
            f"the body must be JSON, sent with 'Content-Type: application/json'; its type is {given!r}.",
            code="unsupported_media_type",
        )


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client hangs up first, `work` is cancelled.

    It runs in the caller's task, since each further task adds two turns of the event loop to the latency.
    """
    asker = asyncio.current_task()
    assert asker is not None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        asker.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        # Other cancellations still apply.
        if left and asker.cancelling() == 1:
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()
        if left:
            asker.uncancel()


async def gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first error cancels the rest."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Json:
    """A whole answer, made by an encoder that serves all: `JSONResponse` makes one each time."""

    def __init__(self, body: object) -> None:
        self.body = _utf8(body).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class EventStream:
    """A response of server-sent events; stops its source as soon as the client is gone.

    The status line waits for the first event, so that a request refused by the engine is an ordinary error.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await unless_gone(receive, self._send(send))

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


async def with_signs(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Adds a comment at intervals without events, as a keep-alive for the client."""
    next_one: asyncio.Future[bytes] | None = None
    async with aclosing(events):
        try:
            while True:
                next_one = next_one or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait([next_one], timeout=SIGN_SECONDS)
                if not done:
                    yield SIGN
                    continue
                event, next_one = next_one, None
                try:
                    said = event.result()
                except StopAsyncIteration:
                    return
                yield said
        finally:
            if next_one is not None:
                next_one.cancel()
                await asyncio.gather(next_one, return_exceptions=True)


SIGN = b": waiting\n\n"
SIGN_SECONDS = 15.0
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
_compact = json.JSONEncoder(separators=(",", ":")).encode
_utf8 = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def event_of(body: object, kind: str | None = None) -> bytes:
    """`kind` names the event, for clients that look at its name."""
    # ASCII, because some clients take other Unicode separators for the end of a line.
    data = b"data: " + _compact(body).encode() + b"\n\n"
    return data if kind is None else f"event: {kind}\n".encode() + data
