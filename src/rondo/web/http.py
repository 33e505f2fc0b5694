"""HTTP parts of the routes: bounded bodies, event streams, and detection of client disconnects."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rondo.base.errors import RondoError
from rondo.base.telemetry.account import current
from rondo.client.protocol.wire import WireModel
from rondo.web.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia, error_body, log, of_rondo
from rondo.web.sockets.hangup import KEY, Hangup, has_arrived

T = TypeVar("T")


BODY_SECONDS = 60.0
"""The longest wait for the next part of a body, unless the settings say otherwise."""
GONE = 499
"""Status of a request whose client has disconnected."""
BODYLESS = frozenset(["GET", "HEAD", "OPTIONS"])
JSON = "application/json"
SLOWEST_BODY = 4096
"""Bytes a second: a body with a lower mean rate is aborted, regardless of the gaps between its parts."""


async def read_body(
    request: Request,
    limit: int,
    idle_seconds: float = BODY_SECONDS,
    hold: Callable[[int], None] = lambda size: None,
    section: str = "server",
    setting: str = "max_body_bytes",
) -> bytes:
    """Refuses a body over `limit`, before it is read if its size is declared. `hold` is called with the number of bytes
    read so far, and raises if the server's memory is exhausted. `section` and `setting` name the limit's setting;
    without a `setting` the limit is fixed."""
    declared = _header(request, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, section, setting)
    if has_arrived(request.scope):
        message = await request.receive()  # at once, without a timer
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        whole: bytes = message.get("body", b"")
        if len(whole) > limit:
            raise _too_large(limit, section, setting)
        hold(len(whole))
        return whole
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
                    raise _too_large(limit, section, setting)
                hold(size)
                parts.append(part)
                if more:
                    latest = begun + idle_seconds + size / SLOWEST_BODY
                    patience.reschedule(min(now() + idle_seconds, latest))
    except TimeoutError:
        raise BodyTimeout(
            f"nothing more of the request body came for {idle_seconds:g} s ({section}.body_seconds), or it came more "
            f"slowly than {SLOWEST_BODY} bytes a second.",
            code="body_timeout",
        ) from None
    return b"".join(parts)


def _too_large(limit: int, section: str, setting: str) -> BodyTooLarge:
    remedy = f", or raise the server's setting {section}.{setting}" if setting else ""
    return BodyTooLarge(
        f"the request body is larger than {limit} bytes. Send it in several requests{remedy}.",
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


def basic_password_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The password in `Authorization: Basic ...`, as clients send it for http://user:password@host."""
    scheme, _, text = dict(headers).get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def check_json(request: Request) -> None:
    """A web page may send other types to any server it can reach without asking the browser's user first."""
    given = _header(request, b"content-type").decode("latin-1")
    if given != JSON and given.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMedia(
            f"the body must be JSON, sent with 'Content-Type: application/json'; its type is {given!r}.",
            code="unsupported_media_type",
        )
    encoding = _header(request, b"content-encoding").decode("latin-1")
    if encoding and encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMedia(
            f"the body has the Content-Encoding {encoding[:100]!r}: send it without compression.",
            code="unsupported_content_encoding",
        )


def _header(request: Request, name: bytes) -> bytes:
    """`Request.headers` compares texts, which takes ten times as long."""
    found: bytes = next((value for given, value in request.scope["headers"] if given == name), b"")
    return found


def bounded(app: ASGIApp, limit: int, seconds: float, section: str) -> ASGIApp:
    """`app`, whose request bodies are read before it, up to `limit` bytes. `section`: section of the settings."""

    async def read_first(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in BODYLESS:
            await app(scope, receive, send)
            return
        try:
            body = await read_body(Request(scope, receive), limit, seconds, section=section, setting="")
        except RondoError as error:
            await of_rondo(error)(scope, receive, send)
            return
        except ClientDisconnect:
            await Response(status_code=GONE)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await app(scope, replay, send)

    return read_first


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], scope: Scope | None = None) -> T:
    """The result of `work`; if the client hangs up first, `work` is cancelled. With a `scope` of our own protocol that
    costs no task.

    It runs in the caller's task, since each further task adds two turns of the event loop to the latency.
    """
    asker = asyncio.current_task()
    assert asker is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        asker.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    hangup: Hangup | None = None if scope is None else scope.get(KEY)
    watcher = asyncio.create_task(watch()) if hangup is None else None
    if hangup is not None:
        hangup.add(leave)
    try:
        return await work
    except asyncio.CancelledError:
        # Other cancellations still apply.
        if left and asker.cancelling() == 1:
            raise ClientDisconnect from None
        raise
    finally:
        if hangup is not None:
            hangup.discard(leave)
        if watcher is not None:
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
