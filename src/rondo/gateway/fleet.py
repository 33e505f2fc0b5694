"""Engines of the gateway: registration, health checks, reported load, draining."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rondo.base.errors import Conflict, InvalidRequest, NotFound
from rondo.base.telemetry.log import get_logger
from rondo.control.router import Instance, Router
from rondo.gateway.config import GatewayConfig
from rondo.gateway.proxy.upstream import Upstream

log = get_logger("rondo.gateway.fleet")

MODELS_EVERY = 5
"""Health checks between two readings of the list of models."""


@dataclass
class FleetEngine:
    """An engine and its latest report."""

    instance: Instance
    cards: list[dict[str, Any]] = field(default_factory=list)
    """Its models, as `/v1/models` lists them."""
    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    weight_version: str | None = None
    seen: float | None = None
    """Time of the latest successful check, in seconds since the epoch."""
    error: str | None = None
    """Cause of the latest failed check."""
    restarts: int = 0
    """How often it became ready again."""
    checks: int = 0

    @property
    def id(self) -> str:
        parts = urlsplit(self.instance.url)
        return parts.netloc

    def as_dict(self) -> dict[str, Any]:
        instance = self.instance
        return {
            "id": self.id,
            "url": instance.url,
            "state": self.state,
            "models": sorted(instance.models),
            "running": self.running,
            "waiting": self.waiting,
            "requests": instance.requests,
            "pending_work": round(instance.work),
            "kv_usage": self.kv_usage,
            "weight_version": self.weight_version,
            "failures": instance.failures,
            "restarts": self.restarts,
            "seen": self.seen,
            "error": self.error,
        }

    @property
    def state(self) -> str:
        if self.instance.draining:
            return "draining"
        if self.instance.healthy:
            return "ready"
        return "starting" if self.seen is None else "unreachable"


class Fleet:
    def __init__(self, config: GatewayConfig, upstream: Upstream) -> None:
        self.config, self.upstream = config, upstream
        self.router = Router((), config.router)
        self.engines: dict[str, FleetEngine] = {}
        self.changed = asyncio.Event()
        self._polls: dict[str, asyncio.Task[None]] = {}

    def add(self, url: str) -> FleetEngine:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidRequest(
                f"{url!r} is not the URL of an engine: give one such as http://127.0.0.1:8001.", param="url"
            )
        engine = FleetEngine(Instance(url.rstrip("/"), healthy=False))
        if engine.id in self.engines:
            raise Conflict(f"The engine {engine.id} is registered already.", param="url")
        self.engines[engine.id] = engine
        self.router.add(engine.instance)
        self._polls[engine.id] = asyncio.create_task(self._poll(engine))
        return engine

    def find(self, id: str) -> FleetEngine:
        if id not in self.engines:
            known = ", ".join(self.engines) or "none"
            raise NotFound(f"There is no engine {id!r}. Registered: {known}.", param="id")
        return self.engines[id]

    def remove(self, id: str) -> None:
        engine = self.find(id)
        del self.engines[id]
        self.router.remove(engine.instance)
        self._polls.pop(id).cancel()
        self._note_change()

    def set_draining(self, id: str, draining: bool) -> FleetEngine:
        engine = self.find(id)
        engine.instance.draining = draining
        self._note_change()
        return engine

    @property
    def starting(self) -> bool:
        """Whether an engine has not answered yet, so that its models are unknown."""
        return any(each.state == "starting" for each in self.engines.values())

    def models(self) -> list[dict[str, Any]]:
        """Cards of all models, each once, of engines that can answer."""
        found: dict[str, dict[str, Any]] = {}
        for engine in self.engines.values():
            if engine.instance.healthy:
                for card in engine.cards:
                    found.setdefault(card["id"], card)
        return [found[name] for name in sorted(found)]

    async def close(self) -> None:
        for task in self._polls.values():
            task.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)

    def suspect(self, instance: Instance) -> None:
        """A request failed there: check its health now."""
        for engine in self.engines.values():
            if engine.instance is instance:
                self._polls[engine.id].cancel()
                self._polls[engine.id] = asyncio.create_task(self._poll(engine))

    async def _poll(self, engine: FleetEngine) -> None:
        while True:
            await self._check(engine)
            await asyncio.sleep(self.config.poll_seconds)

    async def _check(self, engine: FleetEngine) -> None:
        was, known = engine.instance.healthy, engine.seen is not None
        try:
            await self._read(engine)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, OSError) as error:
            engine.error = f"{type(error).__name__}: {error}"[:300]
            self._set_health(engine, False)
        else:
            engine.error = None
            engine.seen = time.time()
            self._set_health(engine, True)
            engine.restarts += known and not was
        engine.checks += 1
        if was != engine.instance.healthy:
            log.info(
                "engine is ready" if engine.instance.healthy else "engine is not reachable",
                extra={"engine": engine.id, "error": engine.error},
            )
        self._note_change()

    def _set_health(self, engine: FleetEngine, healthy: bool) -> None:
        instance = engine.instance
        if healthy and not instance.healthy:
            instance.failures, instance.open_until = 0, 0.0
            self.router.forget(instance)
        instance.healthy = healthy

    async def _read(self, engine: FleetEngine) -> None:
        instance = engine.instance
        if engine.checks % MODELS_EVERY == 0 or not instance.healthy:
            models = await self.upstream.get_json(instance.url + "/v1/models")
            engine.cards = [card for card in models["data"] if isinstance(card["id"], str)]
            instance.models = frozenset(card["id"] for card in engine.cards)
            with suppress(aiohttp.ClientError, ValueError):
                version = await self.upstream.get_json(instance.url + "/version")
                engine.weight_version = (
                    None if version.get("weight_version") is None else str(version["weight_version"])
                )
        ready = await self.upstream.get(instance.url + "/ready", instance.url + "/health")
        if ready != 200:
            raise ValueError(f"the engine answered {ready} to its health check")
        with suppress(aiohttp.ClientError, ValueError, KeyError, TypeError):
            load = await self.upstream.get_json(instance.url + "/load")
            engine.running, engine.waiting = int(load["running"]), int(load["waiting"])
            engine.kv_usage = load.get("kv_usage")
            instance.reported = max(0, engine.running + engine.waiting - instance.requests)

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
