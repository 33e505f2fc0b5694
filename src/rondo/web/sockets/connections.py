"""Connections within limits: how many, how long a request's head may take, and how one is closed.

A connection without a request under way is idle. Where all places are taken, the ones idle for the longest time are
closed for a new one, so that clients which hold connections open cannot keep others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
from collections import Counter
from typing import Any

from rondo.web.errors import error_body
from rondo.web.sockets.protocol import Protocol

MOST = 8192
"""Connections at a time, where the process may open as many files."""
RESERVED = 64
"""File descriptors beside connections: models, logs, child processes, and connections on their way to be refused."""
READ = 32 << 10
"""Bytes parsed in one turn of the event loop."""
LINGER_SECONDS = 2.0
"""A refused body is read and dropped for so long: closed at once, the client would see a reset and not the answer."""
STALLED_SECONDS = 60.0
"""The longest time in which a client reads nothing of its answer."""


class Connections:
    """Connections of a server. `most` is their maximum, by default from the limit of open files; `per_address` bounds
    the connections of one client address; `head_seconds` is the time for a request's head; `descriptors` is the number
    of open files that a request may need; `section` is that of the server's settings."""

    def __init__(
        self,
        most: int | None,
        per_address: int | None,
        head_seconds: float,
        descriptors: int = 1,
        section: str = "server",
    ) -> None:
        self.section = section
        self.most = max(8, min(most or MOST, _descriptors() // descriptors))
        self.per_address = per_address
        self.head_seconds = head_seconds
        self.open: dict[BoundedConnection, None] = {}
        self.addresses: Counter[str] = Counter()

    def refusal(self, address: str) -> str | None:
        """Why a new connection cannot be served; None if it can."""
        if self.per_address is not None and self.addresses[address] >= self.per_address:
            return (
                f"there are {self.per_address} connections from this address already "
                f"({self.section}.max_connections_per_address). Close some, or use them again."
            )
        if len(self.open) >= self.most:
            self.evict()
        if len(self.open) >= self.most:
            return (
                f"all {self.most} connections are in use ({self.section}.max_connections). Try again later."
            )
        return None

    def add(self, connection: BoundedConnection, address: str) -> None:
        self.open[connection] = None
        self.addresses[address] += 1

    def remove(self, connection: BoundedConnection, address: str) -> None:
        if connection in self.open:
            del self.open[connection]
            self.addresses[address] -= 1
            if not self.addresses[address]:
                del self.addresses[address]

    def evict(self) -> None:
        """Closes some of the connections that have been idle longest."""
        idle = sorted((one for one in self.open if one.idle_since is not None), key=_idle_since)
        for connection in idle[: max(1, self.most // 16)]:
            connection.drop()

    def sweep(self, now: float) -> None:
        """Closes the connections whose time is over."""
        for connection in list(self.open):
            connection.check(now, self.head_seconds)


def _idle_since(connection: BoundedConnection) -> float:
    return connection.idle_since or 0.0


def _descriptors() -> int:
    """Connections for which there are file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return max(8, soft - used - min(RESERVED, soft // 4))


class BoundedConnection(Protocol):
    """One connection. Times are checked by `Connections.sweep`, so that a request costs no timer."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections
        self._address = ""
        self._lingering: _Lingering | None = None
        self._head_since: float | None = None
        self._heard = False
        self._stalled_since: float | None = None
        self._ended = 0.0

    @property
    def idle_since(self) -> float | None:
        """None while a request is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return max(self._head_since or 0.0, self._ended)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio reads this much at a time: of chunks of one byte it may be ten thousand.
        with contextlib.suppress(AttributeError):  # uvloop has a limit of its own
            transport.max_size = READ  # type: ignore[attr-defined]
        self._lingering = _Lingering(transport, self)
        super().connection_made(self._lingering)  # type: ignore[arg-type]
        self._address = self.client[0] if self.client else ""
        refusal = self._all.refusal(self._address)
        self._all.add(self, self._address)
        self._head_since = self.loop.time()
        if refusal is not None:
            self._answer("503 Service Unavailable", refusal, "server_error", "too_many_connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self, self._address)
        if self._lingering is not None:
            self._lingering.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None and self._lingering.drops:
            return
        self._heard = True
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self.loop.time()
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._head_since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_since = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._ended = self.loop.time()
        super().on_response_complete()

    def check(self, now: float, head_seconds: float) -> None:
        idle_since = None if self._head_since is None else self.idle_since
        if idle_since is not None and now - idle_since > head_seconds:
            self._late(head_seconds)
        elif self.flow is not None and self.flow.write_paused:
            self._stalled_since = self._stalled_since or now
            if now - self._stalled_since > STALLED_SECONDS:
                self.transport.abort()
        else:
            self._stalled_since = None

    def _late(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        if not self._heard:
            self.drop()
            return
        message = (
            f"the head of the request did not come within {seconds:g} s ({self._all.section}.header_seconds)."
        )
        self._answer("408 Request Timeout", message, "invalid_request_error", "header_timeout")

    def drop(self) -> None:
        """Closes the connection without an answer; its place is free at once."""
        self._all.remove(self, self._address)
        self.transport.abort()

    def _answer(self, status: str, message: str, kind: str, code: str) -> None:
        body = json.dumps(error_body(message, kind, code=code)).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()


class _Lingering:
    """A transport whose `close`, while the client still sends, ends the answer, and the connection a little later."""

    def __init__(self, transport: asyncio.Transport, connection: BoundedConnection) -> None:
        self._transport = transport
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    @property
    def drops(self) -> bool:
        """Whether received data are dropped."""
        return self._timer is not None

    def close(self) -> None:
        cycle = self._connection.cycle
        sending = cycle is not None and cycle.more_body
        if self.drops or self._transport.is_closing():
            return
        if not sending or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._timer = self._connection.loop.call_later(LINGER_SECONDS, self._transport.abort)
        with contextlib.suppress(OSError):
            self._transport.write_eof()
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self.drops or self._transport.is_closing()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
