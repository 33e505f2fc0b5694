"""The worker inside an engine server: it executes queued requests by direct calls into the application."""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import ServedEngine
from rondo.server.config import ServerConfig
from rondo.worker.config import WorkerConfig
from rondo.worker.start import inside_worker
from rondo.worker.worker import Worker

log = get_logger("rondo.server")


class EngineWithWorker:
    """An engine that drains after its worker."""

    def __init__(
        self,
        engine: ServedEngine,
        app: ASGIApp,
        config: WorkerConfig,
        server: ServerConfig,
        url: str,
        folder: Path,
    ) -> None:
        self.engine, self.app, self.config, self.url, self.folder = engine, app, config, url, folder
        self._key = server.api_key[0] if server.api_key else None
        self._worker: Worker | None = None

    @property
    def failure(self) -> RondoError | None:
        return self.engine.failure

    def start(self) -> None:
        """Called within the event loop of the server."""
        if self.config.gateway is not None:
            self._worker = inside_worker(self.config, self.app, self.url, self._key, self.folder)
            self._worker.start()
            log.info("executing queued requests", extra={"gateway": self.config.gateway})

    async def drain(self, seconds: float) -> None:
        if self._worker is not None:
            await self._worker.stop(min(seconds, self.config.drain_seconds))
            await self._worker.close()
        await self.engine.drain(seconds)
