"""Runs an HTTP server: binds the port first, then serves requests until a signal, and drains before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp

from rondo.base.errors import ConfigError, RondoError
from rondo.base.telemetry.log import get_logger
from rondo.web.config import ListenConfig
from rondo.web.sockets.connections import BoundedConnection, Connections
from rondo.web.spare_log import Sparing

log = get_logger("rondo.server")
loop_log = logging.getLogger("rondo.web.sockets.connections")

SWEEP_TICKS = 10
"""Ticks of a tenth of a second between two looks at the connections."""

KEEPALIVE = (30, 10, 3)
"""Seconds without data before the first probe of a client, seconds between probes, and probes without an answer."""
MOST_DESCRIPTORS = 65_536
WAITING = 2048
"""Connections that wait in the system to be accepted."""
ACCEPTED = 8
"""Number of connections accepted before they are counted: less than the descriptors reserved for them."""
NO_DESCRIPTOR = "socket.accept() out of system resource"
"""asyncio's message; it accepts again a second later."""
LAST_BYTES_SECONDS = 5
"""Seconds that complete answers have to reach slow clients."""


def bind(host: str, port: int) -> socket.socket:
    """Takes the port before anything slow is done, so that a port in use is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio sends small writes at once (TCP_NODELAY) only where it is: otherwise a body
    # waits for the client to acknowledge the head, 40 ms on a connection that is used again.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _notice_lost_clients(listener)
    try:
        listener.bind((host, port))
        # From here on clients may connect; they are answered when the model is there.
        listener.listen(WAITING)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use. Stop what uses it, or choose another with --port."
        else:
            message = (
                f"cannot listen on {host}:{port}: {error.strerror}. Choose others with --host and --port."
            )
        raise ConfigError(message, param="port") from error
    return listener


def _notice_lost_clients(listener: socket.socket) -> None:
    """Accepted connections inherit these: a client whose machine or network is gone sends no end."""
    idle, interval, probes = KEEPALIVE
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (idle + interval * probes) * 1000)


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


def raise_descriptor_limit() -> None:
    """Most systems start processes with 1,024 open files, and allow them more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Drained(Protocol):
    """Part behind the server, such as the engine, that finishes its requests before the server ends."""

    @property
    def failure(self) -> RondoError | None: ...

    async def drain(self, seconds: float) -> None: ...


class _Server(uvicorn.Server):
    """Signals are ours: the first drains and ends with exit code 0, the second ends at once with 128 and its number.

    First the engine drains, while the server still answers: requests end whole, new ones are refused with the reason.
    Only then does the server close its connections.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: Drained | None,
        drain_seconds: float,
        connections: Connections,
    ) -> None:
        super().__init__(config)
        self.connections = connections
        self.engine = engine
        self.drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only the main thread may; elsewhere (tests, notebooks) the caller sets `should_exit`.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self._on_signal, number)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def on_tick(self, counter: int) -> bool:
        """A failed engine stays failed: the process ends, and its supervisor can restart it."""
        failure = None if self.engine is None else self.engine.failure
        if failure is not None and failure.code != "shutting_down" and self._draining is None:
            self.should_exit = True
        if counter % SWEEP_TICKS == 0:
            self.connections.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)
        # asyncio takes the number of connections that it accepts at a time for the length of the system's queue too.
        for listener in sockets or []:
            listener.listen(WAITING)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") == NO_DESCRIPTOR:
            self.connections.evict()
            loop_log.warning("no file descriptor is left for a new connection: raise the limit (ulimit -n)")
        else:
            loop.default_exception_handler(context)

    def _on_signal(self, number: int) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
            return
        log.warning("ended at once: what was running is cut off")
        os._exit(
            128 + number
        )  # an orderly end would wait for the engine's step, and there is nothing to save

    async def _drain(self) -> None:
        try:
            if self.engine is not None:
                log.info("draining", extra={"seconds": self.drain_seconds})
                await self.engine.drain(self.drain_seconds)
        finally:
            self.should_exit = True


def make_server(app: ASGIApp, config: ListenConfig, engine: Drained | None = None) -> uvicorn.Server:
    """Drains `engine` before it ends at a signal."""
    connections = Connections(
        *(config.max_connections, config.max_connections_per_address, config.header_seconds),
        *(config.descriptors, config.section),
    )
    for name in ("uvicorn.error", loop_log.name):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Sparing) for one in logger.filters):
            logger.addFilter(Sparing())
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="off",
            loop="asyncio",
            http=cast("type[asyncio.Protocol]", partial(BoundedConnection, connections)),
            backlog=ACCEPTED,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=LAST_BYTES_SECONDS,
        ),
        engine,
        config.drain_seconds,
        connections,
    )


def run_server(server: uvicorn.Server, listener: socket.socket, on_start: Callable[[], None]) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(on_start)
        await server.serve(sockets=[listener])

    asyncio.run(main())
