"""A job's metrics for Prometheus: at a port of its process while it runs, and in a file of its folder at the end."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from rondo.base.errors import ConfigError
from rondo.base.storage.files import atomic_write
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.metrics import CONTENT_TYPE, PREFIX

log = get_logger(__name__)

FILE = "metrics.prom"
TOTALS = {
    "input_tokens": "Number of input tokens of all ranks.",
    "flops": "Floating-point operations by the model's shape, with full attention.",
}
"""Metrics exported as counters; the others are gauges with the value of the last step."""


class Prometheus:
    def __init__(self, name: str, folder: Path, host: str, port: int, section: str = "train") -> None:
        self._name, self._file, self._section = name, folder / FILE, section
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauges: dict[str, Gauge] = {}
        self._totals = {
            metric: Counter(_full(section, metric), doc, ["job_hash"], registry=self._registry)
            for metric, doc in TOTALS.items()
        }
        try:
            self._server = _Server((host, port), self._registry)
        except OSError as error:
            raise ConfigError(
                f"{section}.metrics.port: {host}:{port} cannot be opened: {error.strerror}. Take another port, or 0 "
                "for a free one.",
                param=f"{section}.metrics.port",
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="rondo-metrics", daemon=True)
        self._thread.start()
        log.info("metrics for Prometheus", extra={"url": f"http://{host}:{self.port}/metrics"})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in {"step": float(step), **values}.items():
            if name in self._totals:
                self._totals[name].labels(self._name).inc(value)
            else:
                self._gauge(name).labels(self._name).set(value)

    def close(self) -> None:
        atomic_write(self._file, generate_latest(self._registry))
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _gauge(self, name: str) -> Gauge:
        full = _full(self._section, name)
        if full not in self._gauges:
            self._gauges[full] = Gauge(
                full, f"{name} of the last step.", ["job_hash"], registry=self._registry
            )
        return self._gauges[full]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        super().__init__(address, _Handler)
        self.registry = registry


class _Handler(BaseHTTPRequestHandler):
    """Handler that always returns Prometheus's text format: in OpenMetrics the library replaces colons by
    underscores.
    """

    server: _Server
    timeout = 30

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        text = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *values: object) -> None:
        """Scrapes are not logged."""


def _full(section: str, name: str) -> str:
    return f"{PREFIX}{section}_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
