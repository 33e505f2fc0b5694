"""Queue of requests whose engines are full: priority bands, and fairness among the owners within a band.

A higher band is always served first. Within a band, start-time fair queueing shares service by estimated work: each
owner has a virtual time that advances by the work of its requests, and the owner with the least virtual time is next.
An owner that returns after a pause continues at the band's virtual time, so that a pause earns no credit.

The queue is bounded in requests and bytes. In a full queue a request takes the place of requests of lower bands, or of
requests of an owner in its own band with more of them waiting; otherwise it is refused.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Ticket:
    """A request that needs an engine."""

    model: str
    band: int
    """0 is served first."""
    owner: str
    work: float
    size: int
    """Bytes that it occupies while it waits."""
    charged: bool = False
    """Whether its work has been added to its owner's virtual time. A request that is queued again is charged once."""


@dataclass(eq=False)
class _Flow:
    """Waiting requests of one owner in one band."""

    owner: str
    virtual: float
    waiting: dict[str, deque[Ticket]] = field(default_factory=dict)
    """By model."""
    requests: int = 0


class _Band:
    def __init__(self) -> None:
        self.virtual = 0.0
        self.flows: dict[str, _Flow] = {}
        self.requests = self.size = 0
        self._heads: dict[str, list[tuple[float, int, _Flow]]] = {}
        """For each model: owners with waiting requests, by virtual time. An entry with another time is outdated."""
        self._count = itertools.count()

    def add(self, ticket: Ticket, first: bool) -> None:
        flow = self.flows.get(ticket.owner)
        if flow is None:
            flow = self.flows[ticket.owner] = _Flow(ticket.owner, self.virtual)
        elif not flow.requests:
            flow.virtual = max(flow.virtual, self.virtual)
        queue = flow.waiting.setdefault(ticket.model, deque())
        if first:
            queue.appendleft(ticket)
        else:
            queue.append(ticket)
        self._count_in(flow, ticket, 1)
        if len(queue) == 1:
            self._note(flow, ticket.model)

    def remove(self, ticket: Ticket) -> bool:
        flow = self.flows.get(ticket.owner)
        queue = flow.waiting.get(ticket.model) if flow is not None else None
        if flow is None or queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del flow.waiting[ticket.model]
        self._count_in(flow, ticket, -1)
        self._drop_idle(flow)
        return True

    def take(self, models: Collection[str]) -> Ticket | None:
        heads = [head for model in models if (head := self._head(model)) is not None]
        if not heads:
            return None
        virtual, _, flow, model = min(heads, key=lambda head: head[:2])
        queue = flow.waiting[model]
        ticket = queue.popleft()
        if not queue:
            del flow.waiting[model]
        self._count_in(flow, ticket, -1)
        self.virtual = max(self.virtual, virtual)
        if not ticket.charged:
            ticket.charged = True
            flow.virtual = virtual + ticket.work
        for other in flow.waiting:
            self._note(flow, other)
        self._drop_idle(flow)
        return ticket

    def newest_of_largest(self) -> Ticket | None:
        """The newest request of the owner with the most waiting requests."""
        largest = max(self.flows.values(), key=lambda flow: flow.requests, default=None)
        if largest is None or not largest.requests:
            return None
        return next(reversed(largest.waiting.values()))[-1]

    def newest_first(self) -> Iterator[Ticket]:
        """Waiting requests; those of one owner and model from the newest to the oldest."""
        for flow in self.flows.values():
            for queue in flow.waiting.values():
                yield from reversed(queue)

    def waiting_of(self, owner: str) -> int:
        return self.flows[owner].requests if owner in self.flows else 0

    def _head(self, model: str) -> tuple[float, int, _Flow, str] | None:
        heap = self._heads.get(model, [])
        while heap:
            virtual, number, flow = heap[0]
            if virtual == flow.virtual and model in flow.waiting:
                return virtual, number, flow, model
            heapq.heappop(heap)
        self._heads.pop(model, None)
        return None

    def _note(self, flow: _Flow, model: str) -> None:
        heapq.heappush(self._heads.setdefault(model, []), (flow.virtual, next(self._count), flow))

    def _count_in(self, flow: _Flow, ticket: Ticket, sign: int) -> None:
        flow.requests += sign
        self.requests += sign
        self.size += sign * ticket.size

    def _drop_idle(self, flow: _Flow) -> None:
        """Forgets idle owners that the virtual time has passed: they would be served as if they were unknown."""
        if not self.requests:
            self.flows.clear()
            self._heads.clear()
            self.virtual = 0.0
        elif not flow.requests and flow.virtual <= self.virtual:
            del self.flows[flow.owner]


class QueueFull(Exception):
    """The queue has no place for the request."""


class WaitQueue:
    def __init__(self, bands: int, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._bands = [_Band() for _ in range(bands)]
        self._models: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(band.requests for band in self._bands)

    @property
    def size(self) -> int:
        """Bytes of all waiting requests."""
        return sum(band.size for band in self._bands)

    @property
    def lengths(self) -> list[int]:
        """Number of waiting requests of each band."""
        return [band.requests for band in self._bands]

    @property
    def models(self) -> list[str]:
        """Models of the waiting requests."""
        return list(self._models)

    def add(self, ticket: Ticket) -> list[Ticket]:
        """Queues the request and returns those that lost their places to it. Raises `QueueFull`."""
        displaced = self._make_room(ticket)
        for each in displaced:
            self.remove(each)
        self._enter(ticket, first=False)
        return displaced

    def put_back(self, ticket: Ticket) -> None:
        """Queues a request again, before the others of its owner. It was admitted once and is not refused."""
        self._enter(ticket, first=True)

    def remove(self, ticket: Ticket) -> bool:
        """Whether the request was waiting."""
        found = self._bands[ticket.band].remove(ticket)
        if found:
            self._leave(ticket)
        return found

    def take(self, models: Collection[str]) -> Ticket | None:
        """Removes and returns the next request for one of the models."""
        for band in self._bands:
            if band.requests and (ticket := band.take(models)) is not None:
                self._leave(ticket)
                return ticket
        return None

    def _enter(self, ticket: Ticket, first: bool) -> None:
        self._bands[ticket.band].add(ticket, first)
        self._models[ticket.model] = self._models.get(ticket.model, 0) + 1

    def _leave(self, ticket: Ticket) -> None:
        self._models[ticket.model] -= 1
        if not self._models[ticket.model]:
            del self._models[ticket.model]

    def _make_room(self, ticket: Ticket) -> list[Ticket]:
        requests, size = len(self) + 1 - self.most, self.size + ticket.size - self.most_bytes
        if requests <= 0 and size <= 0:
            return []
        if ticket.size <= self.most_bytes:
            chosen: list[Ticket] = []
            for each in self._replaceable(ticket):
                chosen.append(each)
                requests, size = requests - 1, size - each.size
                if requests <= 0 and size <= 0:
                    return chosen
        raise QueueFull

    def _replaceable(self, ticket: Ticket) -> Iterator[Ticket]:
        for band in self._bands[: ticket.band : -1]:
            yield from band.newest_first()
        own = self._bands[ticket.band]
        newest = own.newest_of_largest()
        if newest is not None and own.waiting_of(newest.owner) > own.waiting_of(ticket.owner) + 1:
            yield newest
