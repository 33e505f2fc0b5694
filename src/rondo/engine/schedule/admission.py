"""Admission of waiting requests: new and preempted ones start in order while budget, rows, seats and blocks last."""

from __future__ import annotations

from typing import Literal

from rondo.engine.kv.blocks import GONE, Table
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.prefixes import Prefixes
from rondo.engine.kv.swap import Swap
from rondo.engine.schedule.plan import Counters
from rondo.engine.schedule.queue import WaitingQueue
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.running import Running


class Admission:
    def __init__(
        self,
        pool: GroupedPool,
        prefixes: Prefixes,
        running: Running,
        waiting: WaitingQueue,
        seats: BatchingPolicy,
        swap: Swap | None,
        counters: Counters,
    ) -> None:
        self._pool = pool
        self._prefixes = prefixes
        self._running = running
        self._waiting = waiting
        self._seats = seats
        self._swap = swap
        self._counters = counters

    def admit(self, budget: int) -> list[Request]:
        """Admits waiting requests. A request whose next block is being computed by another request is deferred: in the
        next step that block is a cache hit instead of being computed twice."""
        admitted: list[Request] = []
        deferred: list[Request] = []
        while budget > 0 and not self._running.full and len(deferred) < self._running.size:
            request = self._waiting.pop()
            if request is None:
                break
            if not self._seats.admits(request):
                self._waiting.back(request)
                break
            copies = request.host
            found = self._find(request)
            next_key = None if copies else self._prefixes.next_key(request, len(found[0].blocks))
            if self._prefixes.is_claimed(next_key):
                deferred.append(request)
                continue
            if not self._pool.holds(request, found):
                self._waiting.back(request)
                break
            budget -= self._resume(request, found, budget) if copies else self._begin(request, found, budget)
            self._prefixes.claim(request, next_key)
            admitted += [request, *self._gather(request, copies)]
        for request in deferred:
            self._waiting.back(request)
        return admitted

    def drop_copies(self, request: Request) -> None:
        """Releases the host copies of a request that will not be restored from them."""
        if request.host and self._swap is not None:
            self._swap.drop(request)

    def _find(self, request: Request) -> list[Table]:
        """Blocks of the request in the prefix cache. For a swapped request they need not be moved back; after a weight
        update it has no hits, and continues with its own keys and values."""
        if request.host:
            request.publishable &= request.weight_version == self._prefixes.weight_version
            whole = request.computed // self._pool.block_size
            found = self._prefixes.find(request, whole) if request.publishable else self._pool.none()
            return [
                Table([GONE] * copies.passed + table.blocks[copies.passed :], copies.passed)
                for table, copies in zip(found, request.host, strict=True)
            ]
        self._prefixes.begin(request)
        # At least one token remains to be computed: its logits yield the next token.
        return self._prefixes.find(request, (len(request.tokens) - 1) // self._pool.block_size)

    def _begin(self, request: Request, found: list[Table], budget: int) -> int:
        """Starts or restarts a request after its cached prefix; returns its number of tokens in this step."""
        cached = len(found[0].blocks) * self._pool.block_size
        self._counters.prefix_queries += len(request.tokens)
        self._counters.prefix_hits += cached
        request.cached = request.computed = cached
        return self._enter(request, found, budget)

    def _resume(self, request: Request, found: list[Table], budget: int) -> int:
        """Resumes a swapped request; returns its number of tokens in this step."""
        there = [len(table.blocks) for table in found]
        count = self._enter(request, found, budget)
        assert self._swap is not None
        self._swap.restore(request, there)
        return count

    def _enter(self, request: Request, found: list[Table], budget: int) -> int:
        count = self._pool.piece(request, found, budget)
        self._waiting.taken()
        self._running.enter(request, found)
        self._pool.grow(request, request.computed + count)
        self._seats.take(request, request.cached)
        request.planned = count
        return count

    def _gather(self, leader: Request, copies: list[Table]) -> list[Request]:
        """Admits the other waiting samples of the prompt with the same tokens as followers. They must have the same
        host blocks (`copies`) as the leader, so that every sample continues with its own keys and values."""
        gathered = []
        for sibling in leader.siblings:
            if self._running.full:
                break
            if (
                self._seats.admits(sibling)
                and sibling.state == "waiting"
                and sibling.tokens == leader.tokens
                and sibling.host == copies
                and self._waiting.take(sibling)
            ):
                self.drop_copies(sibling)
                self._running.attach(leader, sibling)
                self._seats.take(sibling, leader.cached)
                gathered.append(sibling)
        return gathered


Batching = Literal["continuous", "dynamic", "static"]


class BatchingPolicy:
    """Limits how many requests may start to run. A started request retains its seat to the end."""

    def __init__(self, count: int, batching: Batching) -> None:
        self._count = count
        self._batching = batching
        self._free = count
        self._waited = 0

    def open(self, idle: bool, waiting: int) -> None:
        """Opens seats before admission. Except in continuous batching, a batch opens when nothing runs; a static one
        also waits until it is full or no request has arrived since the last step."""
        if self._batching == "continuous":
            self._free = self._count
        elif idle:
            more_come = self._batching == "static" and waiting != self._waited
            self._free = 0 if more_come and waiting < self._count else min(waiting, self._count)
            self._waited = waiting

    def admits(self, request: Request) -> bool:
        return request.first_cached >= 0 or self._free > 0

    def take(self, request: Request, cached: int) -> None:
        """Records that the request runs. At its first start it occupies a seat, with `cached` tokens from the prefix
        cache."""
        if request.first_cached < 0:
            request.first_cached = cached
            self._free -= 1
