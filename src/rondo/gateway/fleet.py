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
from rondo.control.routing.router import Instance, Router
from rondo.gateway.config import GatewayConfig
from rondo.gateway.proxy.cache_events import CacheFollower
from rondo.gateway.proxy.upstream import Upstream
from rondo.gateway.sources.rates import EngineRates

log = get_logger("rondo.gateway.fleet")

UNUSABLE = (
    *(aiohttp.ClientError, TimeoutError, OSError),
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
)
"""Errors of an engine that is not reachable, and of one whose reports are malformed."""
GONE = (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, ConnectionError)
"""Errors of an engine whose process has ended."""
REFUSED = "The engine refuses the gateway's key: set gateway.engine_key to the key of the engine (--api-key)."
MODELS_EVERY = 5
"""Health checks between two readings of the list of models."""
RATES_EVERY = 2
"""Health checks between two readings of the engine's metrics."""


@dataclass
class FleetEngine:
    """An engine and its latest report."""

    instance: Instance
    cards: list[dict[str, Any]] = field(default_factory=list)
    """Its models, as `/v1/models` lists them."""
    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    rates: EngineRates = field(default_factory=EngineRates)
    weight_version: str | None = None
    seen: float | None = None
    """Time of the latest successful check, in seconds since the epoch."""
    error: str | None = None
    """Cause of the latest failed check."""
    restarts: int = 0
    """How often it accepted connections again after it had refused or closed them."""
    checks: int = 0
    added: float = field(default_factory=time.monotonic)
    prefixes: int = 0
    """Prefixes in its cache, in the state of the router."""
    kv_events: bool = False
    """Whether it reports the prefixes that it stores and drops."""
    expected: bool = True
    """Whether an engine that has not answered may still be starting."""
    down: bool = False
    """It refused or closed connections since it was ready."""

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
            "capacity": instance.capacity,
            "pending_work": round(instance.work),
            "kv_usage": self.kv_usage,
            "tokens_per_second": self.rates.tokens_per_second,
            "prefix_hit_rate": self.rates.prefix_hit_rate,
            "kv_events": self.kv_events,
            "prefixes": self.prefixes,
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
        return "starting" if self.seen is None and self.expected else "unreachable"


class Fleet:
    def __init__(self, config: GatewayConfig, upstream: Upstream) -> None:
        self.config, self.upstream = config, upstream
        self.router = Router((), config.router)
        self.engines: dict[str, FleetEngine] = {}
        self.drained: set[str] = set()
        """Ids of engines with a drain in the store, perhaps of engines that have not been added yet."""
        self.changed = asyncio.Event()
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._suspected: set[str] = set()

    def add(self, url: str) -> FleetEngine:
        instance = Instance(checked_url(url), healthy=False)
        instance.capacity = self.config.router.requests_per_engine
        engine = FleetEngine(instance)
        self.check_new(engine.id)
        instance.draining = engine.id in self.drained
        self.engines[engine.id] = engine
        self.router.add(engine.instance)
        self._polls[engine.id] = asyncio.create_task(self._poll(engine))
        if self.config.router.kv_events:
            follower = CacheFollower(instance, self.router, self.upstream)
            self._followers[engine.id] = asyncio.create_task(follower.run())
        return engine

    def check_new(self, id: str) -> None:
        if id in self.engines:
            raise Conflict(f"The engine {id} is registered already.", param="url")

    def find(self, id: str) -> FleetEngine:
        if id not in self.engines:
            known = ", ".join(self.engines) or "none"
            raise NotFound(f"There is no engine {id!r}. Registered: {known}.", param="id")
        return self.engines[id]

    def remove(self, id: str) -> None:
        engine = self.find(id)
        del self.engines[id]
        self._polls.pop(id).cancel()
        if (follower := self._followers.pop(id, None)) is not None:
            follower.cancel()
        self.router.remove(engine.instance)
        self.upstream.forget(engine.instance.url)
        self._suspected.discard(id)
        self._note_change()

    def set_draining(self, id: str, draining: bool) -> None:
        """Drains an engine, or resumes it, until it is removed."""
        self.find(id).instance.draining = draining
        self._note_change()

    def set_drained(self, ids: set[str]) -> None:
        """Drains these engines, and resumes those that were drained by the call before."""
        changed = self.drained ^ ids
        self.drained = ids
        for id in changed & self.engines.keys():
            self.engines[id].instance.draining = id in ids
        if changed:
            self._note_change()

    @property
    def starting(self) -> bool:
        """Whether an engine has not answered yet, so that its models are unknown."""
        return any(each.state == "starting" for each in list(self.engines.values()))

    def models(self) -> list[dict[str, Any]]:
        """Cards of all models, each once, of engines that can answer."""
        found: dict[str, dict[str, Any]] = {}
        for engine in list(self.engines.values()):  # other threads ask too
            if engine.instance.healthy:
                for card in engine.cards:
                    found.setdefault(card["id"], card)
        return [found[name] for name in sorted(found)]

    async def close(self) -> None:
        tasks = [*self._polls.values(), *self._followers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Ends waits for a change."""
        self._note_change()

    async def check_models(self, url: str) -> None:
        """Reads health and models of a registered engine at once."""
        engine = self.find(urlsplit(url).netloc)
        engine.checks = 0
        await self._check(engine)

    def suspect(self, instance: Instance) -> None:
        """A request failed there: check its health now."""
        for engine in self.engines.values():
            if engine.instance is instance and engine.id not in self._suspected:
                self._suspected.add(engine.id)  # many requests may fail at once
                self._polls[engine.id].cancel()
                self._polls[engine.id] = asyncio.create_task(self._poll(engine))

    async def _poll(self, engine: FleetEngine) -> None:
        while True:
            await self._check(engine)
            self._suspected.discard(engine.id)
            await asyncio.sleep(self.config.poll_seconds)

    async def _check(self, engine: FleetEngine) -> None:
        was = engine.instance.healthy
        try:
            await self._read(engine)
        except UNUSABLE as error:
            refused = isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403)
            engine.error = REFUSED if refused else f"{type(error).__name__}: {error}"[:300]
            engine.expected = not refused and time.monotonic() - engine.added < self.config.start_seconds
            engine.down = engine.down or (engine.seen is not None and isinstance(error, GONE))
            self._set_health(engine, False)
        else:
            engine.error = None
            engine.seen = time.time()
            self._set_health(engine, True)
            engine.restarts += engine.down
            engine.down = False
        engine.checks += 1
        if engine.id in self.engines:
            known = self.router.prefixes
            bit = engine.instance.bit
            engine.prefixes, engine.kv_events = known.of(bit), known.exact(bit)
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
            aliases = (alias for card in engine.cards for alias in card.get("aliases") or ())
            instance.models = frozenset((*(card["id"] for card in engine.cards), *aliases))
            with suppress(aiohttp.ClientError, ValueError, AttributeError):
                version = await self.upstream.get_json(instance.url + "/version")
                engine.weight_version = (
                    None if version.get("weight_version") is None else str(version["weight_version"])
                )
        ready = await self.upstream.get(instance.url + "/ready", instance.url + "/health")
        if ready != 200:
            raise ValueError(f"the engine answered {ready} to its health check")
        with suppress(aiohttp.ClientError, ValueError, KeyError, TypeError):
            before = instance.requests
            load = await self.upstream.get_json(instance.url + "/load")
            engine.running, engine.waiting = int(load["running"]), int(load["waiting"])
            usage = load.get("kv_usage")
            engine.kv_usage = float(usage) if isinstance(usage, int | float) else None
            own = max(before, instance.requests)  # requests that end meanwhile are not those of others
            instance.reported = max(0, engine.running + engine.waiting - own)
            instance.capacity = self._capacity(load.get("max_running"))
        if engine.checks % RATES_EVERY == 0:
            with suppress(aiohttp.ClientError, ValueError, TimeoutError):
                engine.rates.note(await self.upstream.get_bytes(instance.url + "/metrics"), time.monotonic())

    def _capacity(self, batch: object) -> int | None:
        """Requests that an engine with this largest batch answers at once."""
        router = self.config.router
        if router.requests_per_engine is not None:
            return router.requests_per_engine
        return batch + router.backlog if isinstance(batch, int) and batch > 0 else None

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def checked_url(url: str) -> str:
    """The address of an engine, without credentials, query and control characters."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    plain = url.isascii() and url.isprintable() and not set(url) & set(" @?#")
    if not good or not plain:
        raise InvalidRequest(
            f"{url!r} is not the URL of an engine: give one such as http://127.0.0.1:8001.", param="url"
        )
    return url.rstrip("/")
