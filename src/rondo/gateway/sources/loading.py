"""Models that the supervisor of `rondo up` loads with the first request for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Protocol

import aiohttp

from rondo.base.errors import Conflict, InvalidRequest, NotFound, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.upstream import Upstream

log = get_logger("rondo.gateway.sources.loading")

LISTED_SECONDS = 1.0
"""Time between two searches for unknown models."""
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)


class Registered(Protocol):
    """Models of the registry, beyond the list of the supervisor."""

    def offers(self, model: str) -> bool: ...

    def names(self) -> frozenset[str]: ...

    def target(self, model: str) -> str: ...

    async def resolve(self, model: str) -> str: ...

    async def locate(self, model: str) -> dict[str, Any] | None: ...

    async def load_adapter(self, model: str) -> bool: ...


class Loading:
    """Follows the supervisor's list of models and the engines that it started, and requests models from it. Requests
    for one model share one call."""

    def __init__(self, config: GatewayConfig, fleet: Fleet, upstream: Upstream) -> None:
        self.config, self.fleet, self.upstream = config, fleet, upstream
        self.models: list[dict[str, Any]] = []
        """Rows of the supervisor, loaded models included."""
        self.listed = False
        """Whether the supervisor's list has been read."""
        self.registry: Registered | None = None
        self._names: dict[str, str] = {}
        self._pinned: dict[str, list[str]] = {}
        """URLs of the engines of the command line, by the folder or file of their model."""
        self._searched = -LISTED_SECONDS
        self._search: asyncio.Task[None] | None = None
        self._engines: dict[str, float] = {}
        """URLs of the fleet that the supervisor started on demand, and the time at which each was known to answer."""
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._poll = asyncio.create_task(self._follow()) if config.supervisor else None

    def offers(self, model: str) -> bool:
        """Whether the model is loaded on demand."""
        if model in self._names:
            return True
        return (
            self.config.supervisor is not None and self.registry is not None and self.registry.offers(model)
        )

    def same(self, name: str, other: str) -> bool:
        """Whether the supervisor serves one model under both names."""
        return name in self._names and self._names[name] == self._names.get(other)

    def pinned_name(self, source: str) -> str | None:
        """Name under which an engine of the command line serves the model of a folder or file."""
        for url in self._pinned.get(source, ()):
            engine = self.fleet.engines.get(url.partition("://")[2])
            if engine is not None and engine.cards:
                return str(engine.cards[0]["id"])
        return None

    def row_of(self, model: str) -> dict[str, Any] | None:
        """The supervisor's row of a model."""
        id = self._names.get(model)
        return next((row for row in self.models if row["id"] == id), None)

    @property
    def registered(self) -> Collection[str]:
        """Names of registered models."""
        return () if self.registry is None else self.registry.names()

    def target(self, model: str) -> str:
        """Like `resolve`, for names that the registry has listed."""
        return model if self.registry is None else self.registry.target(model)

    async def resolve(self, model: str) -> str:
        """The name under which engines serve the model of a request."""
        return model if self.registry is None else await self.registry.resolve(model)

    def started(self, url: str) -> bool:
        """Whether the supervisor started the engine on demand."""
        return url in self._engines

    @property
    def names(self) -> Collection[str]:
        """Names and aliases of all models that load on demand."""
        return self._names.keys()

    def cards(self) -> list[dict[str, Any]]:
        """Models that are not loaded, for `/v1/models`."""
        return [
            {
                "id": row["id"],
                "object": "model",
                "created": row["created"],
                "owned_by": "rondo",
                "parent": row["parent"],
                "aliases": row["aliases"],
                "loaded": False,
            }
            for row in self.models
        ]

    async def ensure(self, model: str) -> bool:
        """Waits until an engine serves the model; False if there is none to load."""
        if self.config.supervisor is None:
            return self.registry is not None and await self.registry.load_adapter(model)
        if not await self._has(model):
            return False
        if model not in self._loads:
            task = self._loads[model] = asyncio.create_task(self._load(model))
            task.add_done_callback(lambda done: self._ended(model, done))
        try:
            async with asyncio.timeout(self.config.load_seconds):
                await asyncio.shield(self._loads[model])
        except TimeoutError:
            raise Unavailable(
                f"The model {model!r} is not loaded after {self.config.load_seconds:g} s and still loading: try again "
                "later, or raise gateway.load_seconds.",
                code="model_loading",
            ) from None
        return True

    async def unload(self, model: str) -> None:
        await self._call("/unload", {"model": self._names.get(model, model)}, self.config.load_seconds)
        await self.refresh()

    async def refresh(self, fresh: bool = False) -> None:
        """Reads the list of models, and registers or removes engines."""
        asked = time.monotonic()
        path = "/models?fresh" if fresh else "/models"
        found = await self._call(path, None, self.config.connect_seconds + LISTED_SECONDS)
        self.models, self.listed = found["models"], True
        self._names = {name: row["id"] for row in self.models for name in (*row["aliases"], row["id"])}
        pinned = found["pinned"]
        folders = {name.rpartition("/")[0]: urls for name, urls in pinned.items() if name.endswith(".gguf")}
        self._pinned = folders | pinned
        urls = {row["url"] for row in self.models if row["url"]}
        for url in urls:
            self._register(url, asked)
        for url in [url for url, known in self._engines.items() if url not in urls and known < asked]:
            del self._engines[url]
            with suppress(NotFound):
                self.fleet.remove(url.partition("://")[2])

    async def close(self) -> None:
        tasks = [*self._loads.values(), *(task for task in (self._poll, self._search) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _has(self, model: str) -> bool:
        if not self.offers(model):
            if self._search is None or self._search.done():
                self._search = asyncio.create_task(self._search_again())
            await asyncio.shield(self._search)
        return self.offers(model)

    async def _search_again(self) -> None:
        """Reads the list as it is now: a job may have ended since the last time. Unknown names share one search."""
        await asyncio.sleep(max(self._searched + LISTED_SECONDS - time.monotonic(), 0))
        self._searched = time.monotonic()
        with suppress(*UNREACHABLE, RondoError):
            await self.refresh(fresh=True)

    async def _load(self, name: str) -> None:
        log.info("model is requested from the supervisor", extra={"model": name})
        body: dict[str, Any] = {"model": name}
        if self.registry is not None and self.registry.offers(name):
            body["loadable"] = await self.registry.locate(name)
        found = await self._call("/ensure", body, None)
        for url in found["urls"]:
            self._register(url, time.monotonic())
            await self.fleet.check_models(url)

    def _register(self, url: str, known: float) -> None:
        """Pinned engines, which the fleet has already, are left alone."""
        if url in self._engines:
            self._engines[url] = max(known, self._engines[url])
            return
        with suppress(Conflict):
            self.fleet.add(url)
            self._engines[url] = known

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._loads[name]
        if not task.cancelled():
            task.exception()  # which the waiting requests report, if any is left

    async def _follow(self) -> None:
        failing = False
        while True:
            try:
                await self.refresh()
                failing = False
            except (*UNREACHABLE, RondoError) as error:
                if not failing:
                    log.warning(f"the supervisor does not answer: {type(error).__name__}: {error}")
                failing = True
            await asyncio.sleep(self.config.poll_seconds)

    async def _call(self, path: str, body: dict[str, Any] | None, seconds: float | None) -> Any:
        key = self.config.supervisor_key or ""
        try:
            status, answer = await self.upstream.call(f"{self.config.supervisor}{path}", key, body, seconds)
        except UNREACHABLE as error:
            raise Unavailable(
                "The supervisor, which loads models, does not answer: try again in a few seconds.",
                code="supervisor_unavailable",
            ) from error
        if status != 200:
            raise _error(status, answer)
        return answer


def _error(status: int, answer: Any) -> RondoError:
    told = answer.get("error", {}) if isinstance(answer, dict) else {}
    kind = {400: InvalidRequest, 404: NotFound}.get(status, Unavailable)
    message = str(told.get("message", f"The supervisor answered {status}."))
    return kind(message, param=told.get("param"), code=told.get("code"))
