"""Subscription to the events of an engine's prefix cache, so that the router follows its real content."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from rondo.base.telemetry import metrics
from rondo.base.telemetry.log import get_logger
from rondo.control.routing.router import Instance, Router
from rondo.gateway.proxy.upstream import Upstream

log = get_logger("rondo.gateway.fleet")

WAIT_SECONDS = 10
"""Longest wait for a change, at the engine."""
PAUSE_SECONDS = 0.02
"""Pause between two reads, in which changes gather."""
FAILED_SECONDS = 0.5
UNSUPPORTED_SECONDS = 30.0
"""Pause after an engine refused: it may be replaced by one that reports."""
UNSUPPORTED = (401, 403, 404, 405, 409, 501)

PREFIXES = metrics.counter(
    "gateway_kv_events", "Prefixes that engines reported, as stored or dropped", ("change",)
)
SNAPSHOTS = metrics.counter("gateway_kv_snapshots", "Snapshots of prefix caches, at the start and after gaps")


class CacheFollower:
    """Applies the events of one engine to the router. Without events the router uses its own history."""

    def __init__(self, instance: Instance, router: Router, upstream: Upstream) -> None:
        self.instance, self.router, self.upstream = instance, router, upstream
        self._epoch, self._last = "", 0

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            pause = await self._follow()
            await asyncio.sleep(pause)

    async def _follow(self) -> float:
        """Reads once, and returns the pause until the next read."""
        if not self.instance.healthy:
            return FAILED_SECONDS
        try:
            await self._read()
        except aiohttp.ClientResponseError as error:
            self._lose()
            return UNSUPPORTED_SECONDS if error.status in UNSUPPORTED else FAILED_SECONDS
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
            if self._exact:
                log.warning(
                    "events of a prefix cache are lost",
                    extra={"engine": self.instance.url, "error": f"{type(error).__name__}: {error}"[:300]},
                )
            self._lose()
            return FAILED_SECONDS
        return PAUSE_SECONDS

    async def _read(self) -> None:
        config = self.router.config
        known = f"epoch={self._epoch}&after={self._last}" if self._exact else "epoch="
        changes = await self.upstream.get_json(
            f"{self.instance.url}/v1/kv_events?{known}&piece={config.piece}&longest={config.longest}"
            f"&wait={WAIT_SECONDS}",
            WAIT_SECONDS,
        )
        self._apply(changes)

    def _apply(self, changes: dict[str, Any]) -> None:
        whole, stored, dropped = changes["whole"], changes["stored"], changes["dropped"]
        self._epoch, self._last = changes["epoch"], changes["last"]
        self.router.report(self.instance, stored, dropped, whole)
        PREFIXES.labels("stored").inc(len(stored))
        PREFIXES.labels("dropped").inc(len(dropped))
        if whole:
            SNAPSHOTS.inc()

    @property
    def _exact(self) -> bool:
        return self.router.prefixes.exact(self.instance.bit)

    def _lose(self) -> None:
        """Returns to the history of requests."""
        if self._exact:
            self.router.forget(self.instance)
