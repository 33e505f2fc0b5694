"""HTTP/1.1 protocol: uvicorn's over httptools, with bounded heads and answers in one packet."""

from __future__ import annotations

import asyncio
from typing import Any

from rondo.web.sockets.half_closed import HalfClosed
from rondo.web.sockets.hangup import CYCLE, KEY, Hangup

MOST_HEAD = 64 * 1024
"""Bytes of a request beside its body, after the first packet."""
LARGEST_FRAMING = 16
"""Bytes of framing per chunk of a body; each byte may be a chunk."""
MOST_HELD = 64 * 1024


class Protocol(HalfClosed):
    """Bounds a request's head early: the parser itself buffers a head of any length until its end."""

    _fresh = True
    _size = 0
    _body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._hangup = Hangup()
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._hangup.end()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """The request's task begins in the next turn of the event loop."""
        super().on_headers_complete()
        self.scope[KEY], self.scope[CYCLE] = self._hangup, self.cycle  # type: ignore[literal-required]

    def data_received(self, data: bytes) -> None:
        self._fresh = False
        super().data_received(data)
        if self._fresh or self.transport.is_closing():
            return
        self._size += len(data)
        if self._size > MOST_HEAD + LARGEST_FRAMING * self._body:
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """The rest of the packet may belong to the previous request."""
        self._fresh = True
        self._size = self._body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Further work for the request, such as its log line, runs while the client reads."""
        assert isinstance(self.transport, _Gathering)
        self.transport.flush()
        super().on_response_complete()


class _Gathering:
    """Transport that sends all writes in one turn of the event loop as one packet: separate packets for head and body
    would wake the client twice."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size >= MOST_HELD:
            self.flush()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._transport.write(b"".join(held))
