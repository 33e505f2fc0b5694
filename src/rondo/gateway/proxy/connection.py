"""An HTTP/1.1 connection to an engine, for one request at a time.

It is an asyncio protocol over llhttp's parser, since aiohttp's client took a quarter of the CPU time of a proxied
request; a chunk of a stream is neither queued nor copied twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

MOST_HEAD = 64 << 10
"""Bytes of a response beside its body, after the first packet."""
MOST_HELD = 256 << 10
"""Bytes of a body held until they are read."""
NO_BODY = frozenset([204, 304])
Header = tuple[bytes, bytes]


class EngineFailure(ConnectionError):
    """An engine that is not reachable, stalls, breaks off or answers with malformed HTTP."""


class HungUp(EngineFailure):
    """The engine closed an idle connection as a request was sent on it."""


class EngineConnection(asyncio.Protocol):
    """`free` is called with the connection when it can be used again."""

    transport: asyncio.Transport

    def __init__(self, free: Callable[[EngineConnection], None]) -> None:
        self._free = free
        self._now = asyncio.get_running_loop().time
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._requests = 0
        self._lost = False
        self._reset()

    def _reset(self) -> None:
        self.busy = self.paused = False
        self.since = self._now()
        """Time of the latest data, or of the end of the latest response."""
        self.status = 0
        self.headers: list[Header] = []
        self._parts: list[bytes] = []
        self._held = self._head_size = 0
        self._heard = self._headed = self._interim = self._complete = self._keep = self._until_close = False
        self._error: Exception | None = None

    @property
    def usable(self) -> bool:
        return not (self._lost or self.transport.is_closing())

    async def send(self, request: bytes) -> EngineResponse:
        """Sends a request, and waits for the head of its response."""
        self._requests += 1
        self.busy, self.since = True, self._now()
        try:
            self.transport.write(request)
            while not (self._headed or self._error):
                await self._wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            self.drop()
            raise
        return EngineResponse(self)

    async def read(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether it is the last one. An error replaces the parts left to read."""
        while not (self._parts or self._complete or self._error):
            await self._wait()
        if self._error is not None:
            raise self._error
        parts = self._parts
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts, self._held = [], 0
        if self.paused:
            self.paused, self.since = False, self._now()
            if self.usable:
                self.transport.resume_reading()
        if not self._complete:
            return part, False
        keep = self.usable and self._keep and not self._until_close
        self._reset()
        if keep:
            self._free(self)
        else:
            self.drop()
        return part, True

    def drop(self) -> None:
        self._lost = True
        self.transport.abort()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.drop()
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self.busy or self._complete or self._error is not None:
            pass
        elif self._until_close and exc is None:
            self._complete = True
        elif self._heard or self._requests == 1:
            self._error = EngineFailure(f"the engine closed the connection before the response ended ({exc})")
        else:
            self._error = HungUp("the engine closed an idle connection")
        self._wake()

    def data_received(self, data: bytes) -> None:
        if not self.busy:
            self.drop()
            return
        self._heard, self.since = True, self._now()
        if not self._headed:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
            if not self._headed and self._head_size > MOST_HEAD:
                raise httptools.HttpParserError("the head of the response is too long")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ or error
            self.fail(EngineFailure(f"the response is malformed: {str(cause)[:200]}"))
            return
        self._wake()

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("there are bytes after the end of the response")
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD:
            raise ValueError("the head of the response is too long")
        if self.status == 101 or self.status < 100:
            raise ValueError(f"the engine changed the protocol (status {self.status})")
        self._interim = self.status < 200
        if self._interim:
            return
        framing = dict(self.headers)
        coding = framing.get(b"transfer-encoding", b"").lower()
        sized = b"content-length" in framing or self.status in NO_BODY
        self._until_close = not (sized or coding.endswith(b"chunked"))
        self._headed, self._keep = True, self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._held += len(body)
        if self._held > MOST_HELD and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = not self._interim


class EngineResponse:
    """The response on a connection, until its end."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: EngineConnection) -> None:
        self._connection: EngineConnection | None = connection
        self.status, self.headers = connection.status, connection.headers
        """Names of headers are in lower case."""

    async def read(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether it is the last one."""
        assert self._connection is not None
        part, last = await self._connection.read()
        if last:
            self._connection = None
        return part, last

    def close(self) -> None:
        """Before its end the connection is closed too, so that the engine stops generating."""
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
