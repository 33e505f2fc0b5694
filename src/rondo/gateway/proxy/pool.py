"""Connections to engines: idle ones are used again, and few are opened at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from ssl import SSLContext, create_default_context
from urllib.parse import urlsplit

from rondo.gateway.proxy.connection import (
    EngineConnection,
    EngineFailure,
    EngineResponse,
    Header,
)

IDLE_SECONDS = 30.0
"""Below the engine servers' own limit, so that a connection is not closed while a request is sent on it."""
OPENING = 64
"""Connections opened at a time to one engine: of thousands, some would exceed the time limit while the event loop is
busy with the others."""
MOST_TICK = 5.0


@dataclass(eq=False)
class _Engine:
    """`idle`: the connection used last is used first."""

    host: str
    port: int
    path: bytes
    name: bytes
    """Value of the Host header."""
    tls: SSLContext | None
    opening: asyncio.Semaphore
    idle: list[EngineConnection] = field(default_factory=list)
    failed: float = 0.0
    """Time of the latest failure."""


class EngineConnections:
    """Created within the event loop that uses it."""

    def __init__(self, connect_seconds: float, stall_seconds: float) -> None:
        self._connect_seconds, self._stall_seconds = connect_seconds, stall_seconds
        self._loop = asyncio.get_running_loop()
        self._engines: dict[str, _Engine] = {}
        self._connections: set[EngineConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def post(self, url: str, path: str, headers: Iterable[Header], body: bytes) -> EngineResponse:
        """The response, whose head has arrived."""
        engine = self._engines.get(url) or self._known(url)
        lines = [b"POST ", engine.path, path.encode("ascii"), b" HTTP/1.1\r\nhost: ", engine.name]
        for name, value in headers:
            lines += (b"\r\n", name, b": ", value)
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % len(body))
        connection = self._idle(engine) or await self._open(engine)
        return await connection.send(b"".join(lines) + body)

    def forget(self, url: str) -> None:
        """After an engine was removed."""
        engine = self._engines.pop(url, None)
        for connection in () if engine is None else engine.idle:
            connection.drop()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections:
            connection.drop()
        self._connections.clear()
        await asyncio.sleep(0)  # transports close in the next turn of the event loop

    def _known(self, url: str) -> _Engine:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        engine = self._engines[url] = _Engine(
            str(parts.hostname),
            port,
            parts.path.rstrip("/").encode(),
            parts.netloc.encode(),
            create_default_context() if parts.scheme == "https" else None,
            asyncio.Semaphore(OPENING),
        )
        return engine

    def _idle(self, engine: _Engine) -> EngineConnection | None:
        while engine.idle:
            connection = engine.idle.pop()
            if connection.usable:
                return connection
        return None

    async def _open(self, engine: _Engine) -> EngineConnection:
        asked = self._loop.time()
        async with engine.opening:
            if engine.failed > asked:
                raise EngineFailure("another connection failed during the wait for this one")
            try:
                async with asyncio.timeout(self._connect_seconds):
                    _, connection = await self._loop.create_connection(
                        lambda: EngineConnection(engine.idle.append), engine.host, engine.port, ssl=engine.tls
                    )
            except (OSError, UnicodeError) as error:
                engine.failed = self._loop.time()
                raise EngineFailure(f"cannot connect: {error or type(error).__name__}") from error
        self._connections.add(connection)
        if self._timer is None:
            self._tick()
        return connection

    def _tick(self) -> None:
        """Ends stalled responses, and connections that have been idle for long; a timer per request would cost more."""
        now = self._loop.time()
        for connection in list(self._connections):
            quiet = now - connection.since
            if not connection.usable:
                self._connections.discard(connection)
            elif connection.busy and not connection.paused and quiet > self._stall_seconds:
                connection.fail(EngineFailure(f"the engine sent nothing for {self._stall_seconds:g} s"))
            elif not connection.busy and quiet > IDLE_SECONDS:
                connection.drop()
        for engine in self._engines.values():
            engine.idle[:] = [connection for connection in engine.idle if connection.usable]
        pause = min(self._stall_seconds / 4, MOST_TICK)
        self._timer = self._loop.call_later(pause, self._tick) if self._connections else None
