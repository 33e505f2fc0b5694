"""Minimal HTTP/1.1 client of the load generator: one response at a time per persistent connection.

Parsed in the event loop's own callbacks: with hundreds of streams the client must not become the bottleneck, and a
general client takes several times as long per chunk. Chunks of a body are passed on at arrival.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from rondo.base.errors import ConfigError, Unavailable

LINE = b"\r\n"
OnData = Callable[[bytes], None]


@dataclass(frozen=True)
class ServerAddress:
    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url} is not a URL: {error}.", param="base_url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url} is not an http or https URL.", param="base_url")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), path, tls)

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None:
            self._answer.lost()

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(data)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes, on_data: OnData) -> int:
        """Returns the response's status. Each chunk of a 200 body is passed to `on_data` on arrival, any other body as
        a whole."""
        if self._transport is None:
            raise ConnectionResetError("the connection was closed")
        self._answer = answer = _Answer(on_data)
        try:
            self._transport.write(request)
            await answer.ended
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
        if answer.closes:
            self.close()
        return answer.status

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Answer:
    """One response, read as its bytes come."""

    def __init__(self, on_data: OnData) -> None:
        self.status = 0
        self.closes = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_data = on_data
        self._buffer = bytearray()
        self._read = self._read_head
        self._left = 0

    def feed(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self.ended.done() and self._read():
                pass
        except Exception as error:
            self._end(error)

    def lost(self) -> None:
        if self._read == self._read_until_closed:
            self.closes = True
            self._end()
        else:
            self._end(ConnectionResetError("the server closed the connection in the middle of an answer"))

    def _end(self, error: Exception | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _read_head(self) -> bool:
        end = self._buffer.find(LINE + LINE)
        if end < 0:
            return False
        first, *lines = self._take(end + 4)[:-4].split(LINE)
        if not re.match(rb"HTTP/1\.[01] [1-5]\d\d( |$)", first):
            raise ValueError(f"the server does not speak HTTP/1.1: {first[:80]!r}")
        self.status = int(first[9:12])
        if self.status == 100:
            return True
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (x.partition(b":") for x in lines)
        }
        self.closes = fields.get(b"connection", b"").lower() == b"close" or first.startswith(b"HTTP/1.0")
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            self._read = self._read_chunk
        elif b"content-length" in fields:
            self._left = int(fields[b"content-length"])
            self._read = self._read_rest
            if self._left == 0:
                self._end()
        else:
            self._read = self._read_until_closed
        return True

    def _read_chunk(self) -> bool:
        end = self._buffer.find(LINE)
        if end < 0:
            return False
        size = int(self._buffer[:end].partition(b";")[0], 16)
        whole = end + 2 + size + 2
        if len(self._buffer) < whole:
            return False
        data = self._take(whole)[end + 2 : -2]
        if size == 0:
            self._end()
        else:
            self._on_data(data)
        return True

    def _read_rest(self) -> bool:
        data = self._take(min(self._left, len(self._buffer)))
        self._left -= len(data)
        if data:
            self._on_data(data)
        if self._left == 0:
            self._end()
        return False

    def _read_until_closed(self) -> bool:
        if self._buffer:
            self._on_data(self._take(len(self._buffer)))
        return False


@dataclass
class ConnectionPool:
    """Connections to one server: as many as there are requests at a time, each used again."""

    address: ServerAddress
    headers: Mapping[str, str]
    timeout: float = 600.0
    _idle: list[Connection] = field(default_factory=list)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        head = {
            "Host": f"{host}:{self.address.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"{method} {self.address.path}{path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    async def send(self, request: bytes, on_data: OnData) -> int:
        async with asyncio.timeout(self.timeout):
            connection = await self._connection()
            status = await connection.send(request, on_data)
        if connection.usable:
            self._idle.append(connection)
        return status

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        context = ssl.create_default_context() if self.address.tls else None
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                Connection, self.address.host, self.address.port, ssl=context
            )
        except OSError as error:
            raise Unavailable(f"no answer from {self.address} ({error}). Is the server running?") from error
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
