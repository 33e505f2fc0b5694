"""Workers from settings: inside an engine server, or as a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from pathlib import Path

from starlette.types import ASGIApp

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.worker.config import WorkerConfig
from rondo.worker.engines import AppEngine, HttpEngine, WorkedEngine
from rondo.worker.link import GatewayLink
from rondo.worker.spent import ShapeFlops
from rondo.worker.worker import Worker

log = get_logger("rondo.worker")


def inside_worker(config: WorkerConfig, app: ASGIApp, url: str, key: str | None, folder: Path) -> Worker:
    """A worker with direct calls into the application that serves the model in `folder`. Called within the event
    loop."""
    return _worker(config, AppEngine(app, url, key), folder)


def run_worker(config: WorkerConfig) -> None:
    """Blocks until a signal: the first one finishes or hands back the requests, the second ends at once."""
    if config.gateway is None or config.engine is None:
        missing = "gateway" if config.gateway is None else "engine"
        raise ConfigError(f"a worker needs a URL: set --{missing} http://...", param=f"worker.{missing}")
    shape = None if config.shape is None else Path(config.shape)
    asyncio.run(_run(config, config.engine, shape))


async def _run(config: WorkerConfig, engine: str, shape: Path | None) -> None:
    worker = _worker(config, HttpEngine(engine, config.engine_key), shape)
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def on_signal(number: int) -> None:
        if stopping:
            os._exit(128 + number)
        stopping.append(asyncio.create_task(worker.stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    worker.start()
    log.info("worker is running", extra={"worker": worker.link.worker, "gateway": config.gateway})
    try:
        await worker.wait()
    finally:
        await worker.stop()
        await worker.close()


def _worker(config: WorkerConfig, engine: WorkedEngine, folder: Path | None) -> Worker:
    assert config.gateway is not None
    name = config.name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    link = GatewayLink(config.gateway, config.key, name, config.verify_tls)
    return Worker(link, engine, config, None if folder is None else _flops_of(folder))


def _flops_of(folder: Path) -> ShapeFlops | None:
    try:
        return ShapeFlops.of(folder)
    except ConfigError as error:
        log.warning("results have no FLOPs", extra={"reason": error.message})
        return None
