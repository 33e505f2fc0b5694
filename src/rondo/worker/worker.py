"""The loop of a worker: lease requests that fit, execute each, finish it when its response arrives.

A response with a 2xx status is a result. 429, 503 and an engine that was not reached hand the request back without
counting an attempt; another 5xx counts one, and so does a model that the engine no longer has. Other 4xx are final: the
request becomes a dead letter with the engine's error.

A broken connection or a failed engine is a crash. It counts an attempt of a request that was in flight alone; several
ones become suspects, which the gateway leases in ever smaller cohorts, apart from other requests.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from rondo.base.errors import RondoError
from rondo.base.telemetry.log import get_logger
from rondo.client.protocol.item import Item, ItemResult, Refusal, read_item, result_text
from rondo.worker.config import WorkerConfig
from rondo.worker.engines import EngineGone, EngineReply, WorkedEngine
from rondo.worker.link import GatewayLink, GatewayRefused
from rondo.worker.room import HandBacks, Room
from rondo.worker.spent import Spent, spent_of
from rondo.worker.wire import FinishedItem, LeasedItem

log = get_logger("rondo.worker")

IDLE_RELEASE_SECONDS = 1.0
"""Longest call to the gateway at the end of a worker that holds nothing."""
MODELS_SECONDS = 5.0
"""Time between two readings of the engine's list of models."""
PAUSE_SECONDS = 0.25
ENGINE_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds before the next lease after the engine refused or was away; doubles each time in a row."""
READY_SECONDS = 10.0
"""Longest wait for an engine's readiness."""
GATHER_SECONDS = 0.01
"""Between two leases, so that slots that become free together are filled together."""
HAND_BACKS = 20
"""Times that a worker hands one request back before that counts as an attempt."""
SUSPECTS_WAIT = 30.0
"""Seconds that suspects of a crash wait before a busy worker leases nothing more until it holds nothing; each worker
waits up to twice as long."""
BUSY = frozenset([429, 503])
WRONG_KEY = frozenset([401, 403])
LARGEST_REFUSAL = 3000
Flops = Callable[[Spent], float]


@dataclass
class _Held:
    lease: str
    task: asyncio.Task[None]
    suspect: bool


@dataclass(frozen=True)
class _Crash:
    at: float = -math.inf
    in_flight: int = 0


class Worker:
    """Created within the event loop that runs it."""

    def __init__(
        self, link: GatewayLink, engine: WorkedEngine, config: WorkerConfig, flops: Flops | None = None
    ) -> None:
        self.link, self.engine, self.config, self.flops = link, engine, config, flops
        self.room = Room(engine, config.concurrency)
        self.held: dict[str, _Held] = {}
        self._finished: list[FinishedItem] = []
        self._news = asyncio.Event()
        """A request ended."""
        self._stopping: asyncio.Task[None] | None = None
        self._lease_seconds = 60.0
        self._engine_pause = 0.0
        self._hand_backs = HandBacks()
        self._crash = _Crash()
        self._patience = SUSPECTS_WAIT * random.uniform(1.0, 2.0)
        self._suspects_since: float | None = None
        """Begin of the time in which suspects have been waiting for a worker that holds nothing."""
        self._models: list[str] = []
        self._models_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(each()) for each in (self._lease, self._beat, self._flush)]

    async def wait(self) -> None:
        """Until it has stopped, or fails."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
            return
        for task in done:
            task.result()

    async def stop(self, seconds: float | None = None) -> None:
        """Leases nothing more, waits for the requests in the engine, and hands back unfinished ones."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(seconds))
        await asyncio.shield(self._stopping)

    async def _stop(self, seconds: float | None) -> None:
        if not self._tasks:
            return
        leasing, beating, flushing = self._tasks
        leasing.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.config.drain_seconds if seconds is None else seconds)
        while self.held and loop.time() < deadline:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
        busy = bool(self.held or self._finished)
        for each in list(self.held.values()):
            each.task.cancel()
        for task in (beating, flushing):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Without results and requests, only the reply to a lease may be lost: the gateway has often ended already.
        patience = self.config.drain_seconds if busy else IDLE_RELEASE_SECONDS
        with suppress(TimeoutError, GatewayRefused):
            async with asyncio.timeout(min(patience, self.config.drain_seconds)):
                await self.link.finish(self._finished)
                await self.link.release()

    async def close(self) -> None:
        await self.link.close()
        await self.engine.close()

    async def _lease(self) -> None:
        while True:
            models = await self._served()
            room = await self.room.free(len(self.held)) if models else 0
            if room <= 0 or self._engine_pause or any(each.suspect for each in self.held.values()):
                await self._idle()
                continue
            limit, wait = (0, 0.0) if self._drains() else (room, self.config.wait_seconds)
            try:
                reply = await self.link.lease(models, limit, wait, len(self.held))
            except GatewayRefused as error:
                log.error("the gateway refuses to lease requests", extra={"error": str(error)})
                await asyncio.sleep(LONGEST_PAUSE)
                continue
            self._lease_seconds = reply.lease_seconds
            for each in reply.items:
                self._drop(each.id)  # an earlier lease of the same request has expired
                task = asyncio.create_task(self._execute(each))
                self.held[each.id] = _Held(each.lease, task, each.suspect)
            if reply.suspects:
                self._suspects_since = self._suspects_since or asyncio.get_running_loop().time()
            else:
                self._suspects_since = None
            if reply.suspects and not reply.items:
                await self._idle()
            await asyncio.sleep(GATHER_SECONDS)

    def _drains(self) -> bool:
        """Whether suspects have waited so long that nothing else is leased until the held requests have ended."""
        since, now = self._suspects_since, asyncio.get_running_loop().time()
        return bool(self.held) and since is not None and now - since > self._patience

    async def _idle(self) -> None:
        if self._engine_pause:
            await asyncio.sleep(self._engine_pause)
            if await self._ready():
                self._engine_pause = 0.0
            return
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await self._news.wait()

    async def _served(self) -> list[str]:
        """Names of the engine's models and adapters; none while it does not answer."""
        now = asyncio.get_running_loop().time()
        if not self._models or now - self._models_at > MODELS_SECONDS:
            self._models_at = now
            self._models = await self._read_models()
        return self._models

    async def _read_models(self) -> list[str]:
        try:
            if not await self._ready():
                return []
            reply = await self.engine.call("GET", "/v1/models")
            if reply.status in WRONG_KEY:
                log.error("the engine refuses the key: set worker.engine_key")
            cards = msgspec.json.decode(reply.body)["data"] if reply.status == 200 else []
            return [name for card in cards for name in (card["id"], *card.get("aliases", ()))]
        except (EngineGone, msgspec.DecodeError, KeyError, TypeError):
            return []

    async def _ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_SECONDS):
                for path in ("/ready", "/health"):
                    reply = await self.engine.call("GET", path)
                    if reply.status != 404:
                        return reply.status == 200
        except (EngineGone, TimeoutError):
            return False
        return True

    async def _execute(self, leased: LeasedItem) -> None:
        try:
            ended = await self._attempt(leased)
        except Exception as error:  # a request must not stay leased because of a bug
            log.exception("a request failed")
            ended = FinishedItem(
                leased.id, leased.lease, error=f"{type(error).__name__}: {error}", again=True
            )
        held = self.held.get(leased.id)
        if held is not None and held.lease == leased.lease:
            del self.held[leased.id]
            if ended is not None:
                self._hand_backs.forget(leased.id)
                self._finished.append(ended)
        self._news.set()

    def _drop(self, id: str) -> None:
        """Another worker, or a later lease, has the request."""
        if (lost := self.held.pop(id, None)) is not None:
            lost.task.cancel()
            self._news.set()

    async def _attempt(self, leased: LeasedItem) -> FinishedItem | None:
        """None if the request was handed back."""
        try:
            item = read_item(bytes(leased.item))
        except RondoError as error:
            return FinishedItem(leased.id, leased.lease, error=error.message)
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.config.request_seconds):
                reply = await self.engine.call("POST", item.path, bytes(item.body), leased.id)
        except TimeoutError:
            return self._failed(leased, f"no response within {self.config.request_seconds:g} s")
        except EngineGone as error:
            if error.begun:
                return self._crashed(leased, str(error), begin)
            return await self._hand_back(leased, str(error))
        return await self._ended(leased, item, reply, begin)

    async def _ended(
        self, leased: LeasedItem, item: Item, reply: EngineReply, begin: float
    ) -> FinishedItem | None:
        if 200 <= reply.status < 300:
            return self._answered(leased, item, reply)
        shown = reply.body.decode(errors="replace")[:LARGEST_REFUSAL]
        reason = f"the engine answered {reply.status}: {shown}"
        if reply.status >= 500 and await self._is_crash(reply):
            return self._crashed(leased, reason, begin)
        if reply.status in BUSY or reply.status in WRONG_KEY:
            return await self._hand_back(leased, reason)
        if reply.status >= 500 or reply.status in (408, 499):
            return self._failed(leased, reason)
        if reply.lacks_model:
            return self._failed(leased, reason)  # it was unloaded after the lease
        if len(reply.body) <= LARGEST_REFUSAL and reply.is_json:
            refusal = Refusal(reply.status, leased.id, msgspec.Raw(reply.body))
            return FinishedItem(leased.id, leased.lease, error=result_text(refusal))
        return FinishedItem(leased.id, leased.lease, error=reason)

    def _answered(self, leased: LeasedItem, item: Item, reply: EngineReply) -> FinishedItem:
        if not reply.is_json:
            return FinishedItem(
                leased.id, leased.lease, error="the engine's response is not JSON", again=True
            )
        spent = spent_of(bytes(item.body), reply.body)
        self.room.note(spent.input_tokens + spent.output_tokens)
        result = ItemResult(
            reply.status,
            leased.id,
            msgspec.Raw(reply.body),
            spent.input_tokens,
            spent.output_tokens,
            None if self.flops is None else self.flops(spent),
        )
        return FinishedItem(leased.id, leased.lease, msgspec.Raw(msgspec.json.encode(result)))

    async def _is_crash(self, reply: EngineReply) -> bool:
        """Whether the engine failed, rather than one request."""
        return reply.lost_engine if reply.status in BUSY else not await self._ready()

    def _crashed(self, leased: LeasedItem, reason: str, begin: float) -> FinishedItem:
        """`begin`: time at which the engine received the request. Responses break one after the other, so requests
        that began before the first one share its number of requests in flight."""
        if begin > self._crash.at:
            self._crash = _Crash(asyncio.get_running_loop().time(), len(self.held))
        return msgspec.structs.replace(self._failed(leased, reason), in_flight=self._crash.in_flight)

    def _failed(self, leased: LeasedItem, reason: str) -> FinishedItem:
        self._models_at = 0.0  # the engine may be away
        return FinishedItem(leased.id, leased.lease, error=reason, again=True)

    async def _hand_back(self, leased: LeasedItem, reason: str) -> FinishedItem | None:
        self._engine_pause = min(max(ENGINE_PAUSE, 2 * self._engine_pause), LONGEST_PAUSE)
        if self._hand_backs.add(leased.id, asyncio.get_running_loop().time()) > HAND_BACKS:
            return self._failed(leased, reason)
        log.warning("the engine takes no requests", extra={"reason": reason[:300]})
        await self.link.release([(leased.id, leased.lease)])
        return None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 4)
            leases = {id: each.lease for id, each in self.held.items()}
            held = [*leases.items()]
            held += [(each.id, each.lease) for each in self._finished]
            if not held:
                continue
            try:
                gone = await self.link.beat(held)
            except GatewayRefused as error:
                log.error("the gateway refuses heartbeats", extra={"error": str(error)})
                continue
            for id in gone:
                if id in self.held and self.held[id].lease == leases.get(id):
                    self._hand_backs.forget(id)
                    self._drop(id)

    async def _flush(self) -> None:
        """Sends results as they arrive; results of the time of a call share the next one."""
        while True:
            if not self._finished:
                self._news.clear()
                await self._news.wait()
                continue
            batch = self._finished[:]
            try:
                await self.link.finish(batch)
            except GatewayRefused:
                await self._finish_each(batch)
            del self._finished[: len(batch)]

    async def _finish_each(self, batch: list[FinishedItem]) -> None:
        """One refused result must not hold up the others: it becomes a dead letter."""
        for each in batch:
            try:
                await self.link.finish([each])
            except GatewayRefused as error:
                log.error("the gateway refuses a result", extra={"id": each.id, "error": str(error)})
                reason = f"the gateway refused the result: {error}"
                with suppress(GatewayRefused):
                    await self.link.finish([FinishedItem(each.id, each.lease, error=reason)])
