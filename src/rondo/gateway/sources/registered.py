"""Engines that were registered by API, and drains of these and of the configured engines: written to the store, and
followed there."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import sqlalchemy as sa

from rondo.base.errors import Conflict, RondoError
from rondo.base.telemetry.log import get_logger
from rondo.control.routing.registrations import EngineBook, StoredEngine
from rondo.control.store.store import Store
from rondo.gateway.fleet import Fleet, FleetEngine, checked_url
from rondo.web.config import is_loopback

log = get_logger("rondo.gateway.sources.registered")


class Registrations:
    """Created after the fleet has the configured engines, within the event loop that serves it. Reads the store at
    once, and then every `poll_seconds`, since other gateways write to it. A change is in the store before it takes
    effect. The drain of an engine from another source, whose address may become that of another engine, is in this
    process only."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self.fleet, self.book = fleet, EngineBook(store)
        self._configured = frozenset(fleet.engines)
        self._added: dict[str, str] = {}
        """URLs of the fleet's engines that were registered by API, by id."""
        self._lock = asyncio.Lock()
        self._here = socket.gethostname()
        self._apply(self.book.all(["", self._here]).result())
        self._task = asyncio.create_task(self._follow())

    async def register(self, url: str) -> FleetEngine:
        async with self._lock:
            url = checked_url(url)
            id = urlsplit(url).netloc
            await self._read()
            self.fleet.check_new(id)
            await self.book.register(self._host(id), id, url)
            self.fleet.set_drained(self.fleet.drained - {id})
            try:
                return self._add(id, url)
            except Conflict:  # another source has added it meanwhile
                await self.book.remove(self._host(id), id)
                raise

    async def remove(self, id: str) -> FleetEngine:
        async with self._lock:
            await self._read()
            engine = self.fleet.find(id)
            await self.book.remove(self._host(id), id)
            self._added.pop(id, None)
            if id in self.fleet.engines:  # its source may have removed it meanwhile
                self.fleet.remove(id)
            return engine

    async def set_draining(self, id: str, draining: bool) -> FleetEngine:
        async with self._lock:
            await self._read()
            engine = self.fleet.find(id)
            if id not in self._configured and id not in self._added:
                self.fleet.set_draining(id, draining)
                return engine
            change = self.book.drain if draining else self.book.resume
            await change(self._host(id), id)
            drained = self.fleet.drained
            self.fleet.set_drained(drained | {id} if draining else drained - {id})
            return engine

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self.fleet.config.poll_seconds)
            try:
                async with self._lock:
                    await self._read()
                failing = False
            except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
                if not failing:
                    reason = f"{type(error).__name__}: {error}"[:300]
                    log.warning("registered engines are not read from the store", extra={"error": reason})
                failing = True

    async def _read(self) -> None:
        """Applies changes by other gateways."""
        self._apply(await self.book.all(["", self._here]))

    def _apply(self, rows: list[StoredEngine]) -> None:
        urls = {row.id: row.url for row in rows if row.url is not None}
        for id in [id for id, url in self._added.items() if urls.get(id) != url]:
            del self._added[id]
            if id in self.fleet.engines:
                self.fleet.remove(id)
        drained = {row.id for row in rows if row.draining}
        self.fleet.set_drained(drained & (self._configured | urls.keys()))
        for id, url in urls.items():
            if id not in self.fleet.engines:
                self._add(id, url)

    def _add(self, id: str, url: str) -> FleetEngine:
        engine = self.fleet.add(url)
        self._added[id] = url
        return engine

    def _host(self, id: str) -> str:
        """A loopback address is another engine on each host."""
        return self._here if is_loopback(urlsplit(f"//{id}").hostname or "") else ""
