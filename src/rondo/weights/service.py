"""The checkpoint engine as a process of its own: a copy of the current version for this host, for its engines and for
other hosts.

It watches the directory, fetches each version from a holder (this host first), verifies and publishes it, and switches
its engines. An engine that restarts with older weights is switched to the current version too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import Conflict, RondoError
from rondo.base.telemetry.log import get_logger
from rondo.client.engine import RunningRequests
from rondo.client.http import Client
from rondo.web.admin import admin_route
from rondo.web.config import ListenConfig
from rondo.web.errors import on_bug, on_http_error, on_rondo_error
from rondo.web.run import bind, make_server, url_of
from rondo.weights.directory import Published, WeightDirectory
from rondo.weights.directory.lease import Lease
from rondo.weights.transports.offers import Offers
from rondo.weights.transports.receiver import switch
from rondo.weights.transports.segment import Held
from rondo.weights.transports.serving import version_routes
from rondo.weights.transports.source import WeightSource, fetch

log = get_logger("rondo.weights")


@dataclass
class HostReplica:
    """A host's copy of one model's weights. `url` is the address under which other hosts reach it."""

    model: str
    directory: WeightDirectory
    owner: str
    url: str = ""
    engines: Sequence[str] = ()
    admin_key: str | None = None
    requests: RunningRequests = "retain"
    lease_seconds: float = 30.0
    deltas: bool = False
    """Whether each version is compared with the version before it, for other hosts that have that one."""
    offers: Offers = field(default_factory=Offers)
    failures: dict[str, str] = field(default_factory=dict)
    """The latest error of each engine."""
    versions: dict[str, int] = field(default_factory=dict)
    _entry: Published | None = None
    """The published entry."""
    _unpublished: Published | None = None
    """The entry of the held version, if publishing it has failed."""

    @property
    def held(self) -> Held | None:
        return self.offers.held

    def follow(self, seconds: float) -> None:
        """One round: waits for a newer version for up to `seconds`, fetches it, and switches engines that lag."""
        self.offers.expire()
        if self._unpublished is not None:
            self._publish(self._unpublished)
        present = -1 if self.held is None else self.held.version
        holders = [each for each in self.directory.watch(self.model, present, seconds) if each.source]
        if holders:
            self._take(holders)
        if self.held is not None:
            for engine in self.engines:
                self._switch(engine, self.held)

    def close(self) -> None:
        if self.held is not None:
            with suppress(RondoError):
                self.directory.withdraw(self.model, self.held.version, self.owner)
        self.offers.close()

    def _take(self, holders: Sequence[Published]) -> None:
        error: RondoError | None = None
        before = self.held
        found = [(WeightSource.parse(holder.source), holder) for holder in holders]
        random.shuffle(found)
        for source, holder in sorted(found, key=lambda each: each[0].kind != "shm"):
            if source.kind == "shm" and not source.folder.is_dir():
                continue  # of another host
            try:
                held = fetch(source, holder.version, base=None if before is None else before.folder)
            except RondoError as cause:
                log.warning("a holder failed", extra={"holder": holder.owner, "error": str(cause)})
                error = cause
                continue
            self.offers.offer(held, self.deltas)
            self._unpublished = replace(holder, owner=self.owner, source=self._source())
            self._publish(self._unpublished)
            return
        if error is not None:
            raise error

    def _publish(self, entry: Published) -> None:
        """Publishes the held version in place of the one before it. The next round repeats it after an error, unless
        the directory lists a newer version, which the next round fetches."""
        try:
            self.directory.publish(entry)
        except Conflict as error:
            if error.code != "not_newer":
                raise
            previous, self._entry, self._unpublished = self._entry, None, None
            if previous is not None:  # its bytes were replaced
                self.directory.withdraw(self.model, previous.version, self.owner)
            return
        previous, self._entry, self._unpublished = self._entry, entry, None
        if previous is not None and previous.version != entry.version:
            self.directory.withdraw(self.model, previous.version, self.owner)

    def repair(self) -> None:
        """Publishes the held version again after the lease has expired."""
        if self.held is not None and self._entry is not None:
            self.directory.publish(self._entry)

    def _source(self) -> str:
        """Address under which other hosts fetch this copy."""
        if not self.url:
            return ""
        return f"{self.url}/v1/weights/{quote(self.model, safe='')}"

    def _switch(self, engine: str, held: Held) -> None:
        try:
            with Client(engine, admin_key=self.admin_key) as client:
                version = int(client.weight_info()["weight_version"])
                if version < held.version:
                    switch(client, held.folder, held.version, self.requests)
                    version = held.version
            self.versions[engine] = version
            self.failures.pop(engine, None)
        except RondoError as error:
            self.failures[engine] = str(error)


def application(replica: HostReplica, key: str) -> Starlette:
    async def status(request: Request) -> Response:
        held = replica.held
        found: dict[str, Any] = {
            "model": replica.model,
            "version": None if held is None else held.version,
            "owner": replica.owner,
            "moved_bytes": 0 if held is None else held.nbytes,
            "engines": {engine: replica.versions.get(engine) for engine in replica.engines},
            "failures": replica.failures,
        }
        return JSONResponse(found)

    async def health(request: Request) -> Response:
        return Response()

    return Starlette(
        routes=[
            Route("/health", health),
            admin_route("/v1/weights", status, key, "GET"),
            *version_routes(replica.model, replica.offers, key),
        ],
        exception_handlers={RondoError: on_rondo_error, HTTPException: on_http_error, Exception: on_bug},
    )


async def run_replica(replica: HostReplica, seconds: float = 1.0) -> None:
    """Follows the directory until it is cancelled."""
    while True:
        try:
            await asyncio.to_thread(replica.follow, seconds)
        except Exception as error:
            expected = isinstance(error, RondoError)
            log.warning("no version could be fetched", extra={"error": str(error)}, exc_info=not expected)
            await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def following(replica: HostReplica) -> AsyncIterator[None]:
    task = asyncio.create_task(run_replica(replica))
    lease = Lease(replica.directory, replica.owner, replica.lease_seconds, replica.repair)
    try:
        yield
    finally:
        lease.end()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(replica.close)


def serve(replica: HostReplica, key: str, host: str, port: int) -> None:
    """Serves until a signal."""
    listener = bind(host, port)
    replica.url = replica.url or url_of(listener)
    server = make_server(application(replica, key), ListenConfig(host=host, port=port))

    async def main() -> None:
        log.info("serving weights", extra={"url": replica.url, "model": replica.model})
        async with following(replica):
            await server.serve(sockets=[listener])

    asyncio.run(main())
