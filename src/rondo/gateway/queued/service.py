"""The durable queue behind HTTP: submission, waiting for results, rights of keys, workers, maintenance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from rondo.base.errors import InvalidRequest, NotFound, RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.protocol.item import StateFields, item_text, with_model
from rondo.control.key import Key
from rondo.control.queue.leases import Leases
from rondo.control.queue.maintain import Maintenance
from rondo.control.queue.queue import Queue
from rondo.control.queue.views import QueuedRow, rows_at, rows_from
from rondo.control.queue.work import Finished, Group, New, signal_of
from rondo.control.store.store import Store
from rondo.control.usage import UsageLog
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.queued.rates import Rates, Sums
from rondo.gateway.sources.loading import Loading
from rondo.worker.wire import FinishedItem

log = get_logger("rondo.gateway")

RETRY_SECONDS = 1.0
WORKER_SECONDS = 120.0
"""A worker that made no call for so long is no longer listed."""
LEASING_SECONDS = 30.0
"""A worker that made no call for so long, and for half of a lease, is not expected to lease requests."""
PRIORITIES = 1000
"""Largest priority number; admins may also use negative ones."""


class _Body(StateFields, kw_only=True):
    model: str
    stream: bool | None = None


class _Counts(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    flops: float | None = None


_bodies, _counts = msgspec.json.Decoder(_Body), msgspec.json.Decoder(_Counts)


@dataclass
class SeenWorker:
    """A worker's latest call to this gateway."""

    name: str
    models: list[str]
    seen: float
    called: float
    """Time of that call on the monotonic clock."""
    held: int = 0
    results: int = 0


class QueueService:
    """Created within the event loop that serves it."""

    def __init__(
        self, config: GatewayConfig, store: Store, fleet: Fleet, usage: UsageLog, loading: Loading
    ) -> None:
        self.config, self.store, self.fleet, self.usage = config, store, fleet, usage
        self.loading = loading
        self.queue, self.leases = Queue(store, config.queue), Leases(store, config.queue)
        self.rates = Rates()
        self.workers: dict[str, SeenWorker] = {}
        self._task = asyncio.create_task(self._maintain())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def requests_of(self, key: Key, items: Iterable[tuple[str, bytes, int]]) -> list[New]:
        """Queued requests of paths, bodies and priorities, if the key may submit them."""
        known = self.models()
        return [self._request_of(key, known, *each) for each in items]

    def _request_of(
        self, key: Key, known: frozenset[str] | None, path: str, body: bytes, priority: int
    ) -> New:
        try:
            read = _bodies.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"a request's body is not valid: {error}.", param="body") from error
        if read.stream:
            raise InvalidRequest(
                "a queued request cannot stream its response: leave out the field 'stream' of its body.",
                param="stream",
            )
        if name := read.used:
            raise InvalidRequest(
                f"a queued request cannot use stored responses or conversations: leave out the field {name!r} of its "
                "body.",
                param=name,
            )
        if not (0 if key.rights.role != "admin" else -PRIORITIES) <= priority <= PRIORITIES:
            raise InvalidRequest(
                f"priority is a number from 0 to {PRIORITIES}; lower ones are served first, and negative ones need an "
                "admin's key.",
                param="priority",
            )
        key.may_use(read.model)
        if known is not None and read.model not in known:
            raise NotFound(
                f"The model {read.model!r} does not exist: GET /v1/models lists the models.",
                param="model",
                code="model_not_found",
            )
        target = self.loading.target(read.model)
        asked = body if target == read.model else with_model(body, target)
        return New(target, item_text(path, asked), priority)

    def models(self) -> frozenset[str] | None:
        """Names, adapters and aliases included, of the models of engines and workers, ready or not, and of models that
        load on demand. None while they are unknown: an engine is starting, or there is none yet. May be called from any
        thread."""
        if self.fleet.starting or not (self.loading.listed or self.config.supervisor is None):
            return None
        engines = (each.instance.models for each in list(self.fleet.engines.values()))
        workers = (each.models for each in self.live_workers())
        known = frozenset(self.loading.names).union(*engines, *workers, self.loading.registered)
        return known if known or self.loading.listed else None

    def served(self) -> set[str]:
        """Names of models whose requests are being leased: of healthy engines, and of workers that called in the last
        seconds."""
        engines = (each.instance.models for each in self.fleet.engines.values() if each.instance.healthy)
        seconds = max(LEASING_SECONDS, self.config.queue.lease / 2)  # a busy worker only sends heartbeats
        return set().union(*engines, *(each.models for each in self.live_workers(seconds)))

    def live_workers(self, seconds: float = WORKER_SECONDS) -> list[SeenWorker]:
        """Workers that called in the last `seconds`."""
        now = time.monotonic()
        return [each for each in list(self.workers.values()) if now - each.called <= seconds]

    def default_model(self) -> str:
        """The first base model."""
        cards = [card for engine in list(self.fleet.engines.values()) for card in engine.cards]
        other = {card["id"] for card in cards if card.get("parent")}
        other.update(alias for card in cards for alias in card.get("aliases") or ())
        names = [card["id"] for card in self.fleet.models()]
        # A worker's list begins with its engine's base model; its adapters and aliases follow.
        names += sorted(each.models[0] for each in self.live_workers() if each.models)
        found = next((str(name) for name in names if name not in other), None)
        if found is None:
            raise NotFound("No engine serves a model yet: name one in the field 'model'.", param="model")
        return found

    def check_open(self) -> None:
        """Long polls end at once while the gateway shuts down: a worker that repeated them would never rest."""
        if self.store.signals.closing:
            raise Unavailable(
                "The gateway is shutting down: try again in a few seconds.", code="shutting_down"
            )

    async def put(
        self, key: Key, requests: Sequence[New], idempotency_key: str | None, sealed: bool = True
    ) -> Group:
        await self.usage.check_quota(key)
        return await self.queue.put(requests, key.id, key=idempotency_key, sealed=sealed)

    async def group(self, key: Key, name: str) -> Group:
        """A group that the key may see: its own, or any with an admin's key."""
        group = await self.queue.group(name)
        if group.owner != key.id and key.rights.role != "admin":
            raise NotFound(f"there is no group {name!r}", param="request_id")
        return group

    async def wait(self, name: str, seconds: float) -> Group:
        """The group when it has ended, or after `seconds`."""

        async def look() -> Group | None:
            group = await self.queue.group(name)
            return group if group.ended is not None else None

        ended = await self.store.signals.poll([signal_of(name)], seconds, look)
        return ended or await self.queue.group(name)

    async def results(self, name: str, after: int, limit: int, seconds: float) -> list[QueuedRow]:
        """Ended requests after a place, in order, up to the first that has not ended; waits for the first one."""

        async def look() -> list[QueuedRow] | None:
            rows = await rows_from(self.store, name, after, limit)
            ended = next((place for place, row in enumerate(rows) if not row.ended), len(rows))
            return rows[:ended] if ended or not rows else None

        return await self.store.signals.poll([signal_of(name)], seconds, look) or []

    async def results_at(self, name: str, places: Sequence[int], seconds: float) -> list[QueuedRow]:
        """Those of the places that have ended, when the first one has."""

        async def look() -> list[QueuedRow] | None:
            return await rows_at(self.store, name, places) or None

        return await self.store.signals.poll([signal_of(name)], seconds, look) or []

    def note_worker(
        self, name: str, models: Sequence[str] | None = None, held: int | None = None
    ) -> SeenWorker:
        worker = self.workers.setdefault(name, SeenWorker(name, [], 0.0, 0.0))
        worker.seen, worker.called = time.time(), time.monotonic()
        if models is not None:
            worker.models = list(models)
        if held is not None:
            worker.held = held
        return worker

    async def finish(self, worker: str, items: Sequence[FinishedItem]) -> list[str]:
        """Verdicts, when the results are durable."""
        sums, finished = Sums(), []
        for each in items:
            result, counts, text = bytes(each.result), _Counts(), None
            answered = result not in (b"", b"null")
            if answered:
                counts, text = _read_result(each.id, result)
                sums.add(Sums(1, counts.input_tokens, counts.output_tokens, counts.flops or 0.0))
            finished.append(
                Finished(
                    each.id,
                    each.lease,
                    text,
                    None if answered else each.error or "unknown error",
                    each.again,
                    counts.input_tokens,
                    counts.output_tokens,
                    each.in_flight,
                )
            )
        verdicts = await self.leases.finish(finished)
        self.rates.add(sums)
        seen = self.note_worker(worker)
        seen.results += sum(verdict == "done" for verdict in verdicts)
        return list(verdicts)

    async def _maintain(self) -> None:
        """Leases get their full time when a gateway starts, since workers could not renew them before; then expired
        leases and old groups are removed."""
        maintenance = Maintenance(self.queue, self.leases)
        renewed = False
        while True:
            self.workers = {each.name: each for each in self.live_workers()}
            try:
                if not renewed:
                    await self.leases.renew()
                    renewed = True
                await maintenance.run()
            except (RondoError, sa.exc.SQLAlchemyError, OSError) as error:
                log.error(
                    "queue maintenance failed", extra={"error": f"{type(error).__name__}: {error}"[:300]}
                )
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(self.config.queue.sweep_every)


def _read_result(id: str, result: bytes) -> tuple[_Counts, str]:
    """Counts and text of a worker's result."""
    try:
        return _counts.decode(result), result.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the result of {id[:100]!r} is not valid: {error}.", param="results", code="invalid_value"
        ) from error
