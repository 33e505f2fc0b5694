"""Engines for requests: at once where an engine has room, otherwise after a wait in the queue.

A request waits while every engine of its model is full (`Instance.full`). If a request of a lower band occupies such an
engine and no byte of its response has been sent, the waiting request takes its place: the connection to the engine is
closed, and the request of the lower band returns to the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from rondo.base.errors import NotFound, NotReady, Overloaded, RondoError
from rondo.base.telemetry import metrics
from rondo.control.key import TIERS
from rondo.control.routing.router import Route
from rondo.control.routing.waiting import QueueFull, WaitQueue
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.ticket import Pass

MEAN_SHARE = 0.1
"""Weight of the latest wait in the mean wait, from which `Retry-After` is estimated."""
LONGEST_RETRY = 60.0

WAITING = metrics.gauge(
    "gateway_queue_requests", "Requests that wait for an engine, by service tier", ("tier",)
)
QUEUE_BYTES = metrics.gauge("gateway_queue_bytes", "Bytes of requests that wait for an engine")
WAITS = metrics.histogram(
    "gateway_queue_seconds",
    "Wait of requests that found all engines full, by service tier",
    ("tier",),
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0),
)
EXPIRED = metrics.counter(
    "gateway_queue_expired", "Requests that waited longer than gateway.router.queue_seconds", ("tier",)
)
REFUSED = metrics.counter("gateway_queue_refused", "Requests that found the queue full", ("tier",))
PREEMPTED = metrics.counter(
    "gateway_preempted",
    "Requests that lost their place to another: queued (answered with an error) or running (queued again)",
    ("tier", "state"),
)


class QueueOverloaded(Overloaded):
    """`after`: seconds until a further try may succeed."""

    def __init__(self, message: str, after: float, code: str) -> None:
        super().__init__(message, code=code)
        self.after = after


class Gate:
    def __init__(self, fleet: Fleet, now: Callable[[], float] = monotonic) -> None:
        self.fleet, self.config, self._now = fleet, fleet.config.router, now
        self.queue = WaitQueue(len(TIERS), self.config.queue_requests, self.config.queue_bytes)
        self._waiting: dict[Pass, None] = {}
        self._placed: dict[Pass, None] = {}
        self._mean_wait = 0.0
        self._watcher: asyncio.Task[None] | None = None

    async def enter(self, ticket: Pass, tried: Sequence[str] = ()) -> Route:
        """An engine for the request. `tried`: URLs of engines that failed; a request that has one is not queued."""
        router, model = self.fleet.router, ticket.model
        if tried or ticket.task is None or not self._must_wait(model):
            return self._place(ticket, tried)
        router.named(model)  # an unknown model is refused at once
        if not router.serves(model):
            return self._place(ticket, tried)  # which states the reason
        self._enqueue(ticket)
        self._pump()
        self._preempt_for(ticket)
        return await self._wait(ticket)

    def began(self, ticket: Pass) -> None:
        """The first byte of the response has arrived."""
        self._placed.pop(ticket, None)
        if ticket.route is not None:
            self.fleet.router.computed(ticket.route)

    def leave(self, ticket: Pass, well: bool | None) -> None:
        """The request ended at its engine; `well` as in `Router.ended`."""
        if ticket.route is not None:
            self.fleet.router.ended(ticket.route, well)
        ticket.route = None
        self._placed.pop(ticket, None)
        self._pump()

    def continues(self, ticket: Pass) -> bool:
        """Whether the task of the request was cancelled by the gate alone, so that the request continues."""
        if not ticket.preempted:
            return False
        ticket.preempted = False
        return ticket.task is None or ticket.task.uncancel() == 0

    def state(self) -> dict[str, object]:
        """Length of the queue, for `GET /v1/engines`."""
        return {
            "waiting": dict(zip(TIERS, self.queue.lengths, strict=True)),
            "bytes": self.queue.size,
            "mean_wait_seconds": round(self._mean_wait, 3),
        }

    def note_metrics(self) -> None:
        for tier, length in zip(TIERS, self.queue.lengths, strict=True):
            WAITING.labels(tier).set(length)
        QUEUE_BYTES.set(self.queue.size)

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    def _must_wait(self, model: str) -> bool:
        return model in self.queue.models or not self.fleet.router.has_room(model)

    def _place(self, ticket: Pass, tried: Sequence[str]) -> Route:
        fields = ticket.fields
        route = self.fleet.router.choose(
            fields.model, fields.prompt, fields.answer_bytes, tried, fields.pieces
        )
        ticket.route = route
        if ticket.band and ticket.task is not None:
            self._placed[ticket] = None
        return route

    def _enqueue(self, ticket: Pass) -> None:
        if ticket.preemptions:
            self.queue.put_back(ticket)
        else:
            try:
                displaced = self.queue.add(ticket)
            except QueueFull:
                REFUSED.labels(ticket.tier).inc()
                raise self._full("The queue of requests is full") from None
            for each in displaced:
                assert isinstance(each, Pass)
                PREEMPTED.labels(each.tier, "queued").inc()
                error = "The queue of requests is full, and another request took the place of this one"
                self._answer(each, self._full(error))
        ticket.since = self._now()
        ticket.deadline = ticket.since + max(0.0, self.config.queue_seconds - ticket.waited)
        ticket.answer = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = None
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    async def _wait(self, ticket: Pass) -> Route:
        answer = ticket.answer
        assert answer is not None
        try:
            return await answer
        except asyncio.CancelledError:
            if ticket.route is not None:  # placed in the same moment
                self.leave(ticket, well=None)
            raise
        finally:
            self.queue.remove(ticket)
            self._waiting.pop(ticket, None)
            answer.cancel()
            if answer.done() and not answer.cancelled():
                answer.exception()  # so that an answer that comes too late is not logged

    def _pump(self) -> None:
        """Places waiting requests at engines that have room."""
        router = self.fleet.router
        while self._waiting:
            open_models = [model for model in self.queue.models if router.has_room(model)]
            ticket = self.queue.take(open_models) if open_models else None
            if ticket is None:
                return
            assert isinstance(ticket, Pass)
            assert ticket.answer is not None
            if ticket.answer.done():  # its client has left in this moment
                self._waiting.pop(ticket, None)
                continue
            try:
                self._answer(ticket, self._place(ticket, ()))
            except RondoError as error:
                self._answer(ticket, error)

    def _answer(self, ticket: Pass, result: Route | RondoError) -> None:
        """Ends the wait of a request that is in the queue no more."""
        self._waiting.pop(ticket, None)
        waited = self._now() - ticket.since
        ticket.waited += waited
        assert ticket.answer is not None
        if ticket.answer.done():
            return
        if isinstance(result, RondoError):
            ticket.answer.set_exception(result)
            return
        WAITS.labels(ticket.tier).observe(waited)
        self._mean_wait += MEAN_SHARE * (waited - self._mean_wait)
        ticket.answer.set_result(result)

    def _preempt_for(self, ticket: Pass) -> None:
        """Cancels the attempt of a running request of the lowest band; of several, the one that started last."""
        if ticket not in self._waiting:
            return
        candidates = [each for each in reversed(self._placed) if self._yields(each, ticket)]
        if not candidates:
            return
        chosen = max(candidates, key=lambda each: each.band)
        chosen.preempted = True
        chosen.preemptions += 1
        PREEMPTED.labels(chosen.tier, "running").inc()
        assert chosen.task is not None
        chosen.task.cancel()

    def _yields(self, placed: Pass, ticket: Pass) -> bool:
        return (
            placed.band > ticket.band
            and not placed.preempted
            and placed.preemptions < self.config.preemptions
            and placed.route is not None
            and ticket.model in placed.route.instance.models
            and self.fleet.router.takes(placed.route.instance)
            and not placed.begun()
        )

    async def _watch(self) -> None:
        """While requests wait: answers those whose time is over, and places requests when engines change."""
        try:
            while self._waiting:
                changed = self.fleet.changed
                first = min(each.deadline for each in self._waiting)
                try:
                    async with asyncio.timeout(max(0.0, first - self._now())):
                        await changed.wait()
                except TimeoutError:
                    self._expire([each for each in self._waiting if each.deadline <= self._now()])
                self._pump()
        finally:
            self._watcher = None

    def _expire(self, tickets: Iterable[Pass]) -> None:
        for ticket in tickets:
            self.queue.remove(ticket)
            EXPIRED.labels(ticket.tier).inc()
            self._answer(ticket, self._too_late(ticket.model))

    def _too_late(self, model: str) -> RondoError:
        waited = f"the request waited {self.config.queue_seconds:g} s (gateway.router.queue_seconds)"
        try:
            serves = self.fleet.router.serves(model)
        except NotFound:
            serves = False
        if not serves:
            return NotReady(
                f"No engine of {model!r} is ready: {waited}. Try again later.", code="no_engine_ready"
            )
        return QueueOverloaded(
            f"All engines of {model!r} are busy: {waited}. Try again later.",
            self._retry_after,
            "queue_timeout",
        )

    def _full(self, cause: str) -> QueueOverloaded:
        after = self._retry_after
        return QueueOverloaded(f"{cause}: try again in {math.ceil(after)} s.", after, "queue_full")

    @property
    def _retry_after(self) -> float:
        return min(LONGEST_RETRY, max(1.0, self._mean_wait))
