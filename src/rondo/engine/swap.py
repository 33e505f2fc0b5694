"""Preempted requests whose blocks wait in host memory: who goes there, and which blocks move. No clock, no device.

A swapped request keeps how far it has come and the very keys and values it had, so it goes on as if it had not been
preempted: after a push, too, it resumes over its old ones and publishes nothing, as a running request does.

Host blocks are counted like the device's. One that several swapped requests hold (samples that rode together, a
prompt they share) is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rondo.engine.blocks import BlockPool, Identity
from rondo.engine.request import Request

Pairs = list[tuple[int, int]]
"""(to, from) each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it takes to move blocks and to compute tokens, as measured or configured.

    `attention` has, for each kind of layer, its window and how many tokens' worth of all other work it takes to let
    one token see one other.
    """

    block_bytes: int
    bytes_per_second: float
    tokens_per_second: float
    attention: tuple[tuple[int | None, float], ...] = ()
    latency: float = 0.0
    """Seconds that a move takes before its first byte."""

    def move_seconds(self, blocks: int) -> float:
        return self.latency + blocks * self.block_bytes / self.bytes_per_second if blocks else 0.0

    def work(self, start: int, stop: int) -> float:
        """Computing tokens `start` to `stop`, in tokens that see nothing."""
        seen = sum(price * (_seen(stop, window) - _seen(start, window)) for window, price in self.attention)
        return stop - start + seen

    def compute_seconds(self, start: int, stop: int) -> float:
        return self.work(start, stop) / self.tokens_per_second

    def swap_pays(self, out: int, back: int, start: int, stop: int) -> bool:
        """Whether moving `out` blocks away and `back` again is faster than computing tokens `start` to `stop`."""
        return self.move_seconds(out) + self.move_seconds(back) < self.compute_seconds(start, stop)


def _seen(length: int, window: int | None) -> float:
    """Pairs of a token and one that it sees, itself included."""
    inside = length if window is None else min(length, window)
    return inside * (inside + 1) / 2 + (length - inside) * inside


class HostPool:
    """Which host blocks are taken, by how many requests, and where a published block has its copy."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = [0] * num_blocks
        self._index: dict[Identity, int] = {}
        self._identity: list[Identity | None] = [None] * num_blocks

    @property
    def available(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.num_blocks - len(self._free)

    def find(self, identity: Identity | None) -> int | None:
        return None if identity is None else self._index.get(identity)

    def take(self, identity: Identity | None) -> int:
        """The caller has made sure that one is free."""
        block = self._free.pop()
        self._refs[block] = 1
        if identity is not None:
            self._index[identity] = block
            self._identity[block] = identity
        return block

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Last first, so that the next to come gets neighbours in order: those move together."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.append(block)
                identity, self._identity[block] = self._identity[block], None
                if identity is not None:
                    del self._index[identity]

    def check(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Integrity; `held` are the blocks of every swapped request."""
        counts = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                counts[block] += 1
        assert counts == self._refs, (counts, self._refs)
        assert sorted(self._free) == [block for block, refs in enumerate(self._refs) if refs == 0]
        named = {identity: b for b, identity in enumerate(self._identity) if identity is not None}
        assert named == self._index
        assert all(self._refs[block] > 0 for block in named.values())


class Swap:
    def __init__(self, pool: BlockPool, num_blocks: int, cost: Cost) -> None:
        self.pool = pool
        self.host = HostPool(num_blocks)
        self.cost = cost
        self.num_requests = 0
        self.blocks_out = 0
        self.blocks_in = 0
        self._out: Pairs = []
        self._in: Pairs = []

    def keep(self, request: Request) -> bool:
        """Books a place for the blocks of a request that is being preempted, if they fit and moving them pays."""
        blocks = request.blocks[request.passed : self.pool.blocks_for(request.computed)]
        copies = [self.host.find(self.pool.identity(block)) for block in blocks]
        missing = copies.count(None)
        shared = 0 if request.passed else sum(1 for _ in takewhile(self.pool.is_shared, blocks))
        # What others hold and publish will be found again either way; it is copied all the same, because they may
        # have gone by then, and after a push it is this copy that the request goes on with.
        start = shared * self.pool.block_size
        if missing > self.host.available or not self.cost.swap_pays(
            missing, len(blocks) - shared, start, max(start, request.computed)
        ):
            return False
        known = [copy for copy in copies if copy is not None]
        self.host.share(known)
        for i, block in enumerate(blocks):
            copy = copies[i]
            if copy is None:
                copy = copies[i] = self.host.take(self.pool.identity(block))
                self._out.append((copy, block))
            request.host.append(copy)
        self.num_requests += 1
        self.blocks_out += missing
        return True

    def ride(self, rider: Request, leader: Request) -> None:
        """A sample that rode on a swapped one has come as far, and may come back alone."""
        rider.follow(leader)
        rider.host = leader.host.copy()
        self.host.share(rider.host)
        self.num_requests += 1

    def restore(self, request: Request, blocks: Sequence[int]) -> None:
        """The last of its blocks come back, to `blocks`; those before were found on the device."""
        count = len(blocks)
        self._in += zip(blocks, request.host[len(request.host) - count :], strict=True)
        self.blocks_in += count
        self.drop(request)

    def drop(self, request: Request) -> None:
        """The request needs its copies no more."""
        self.host.release(request.host)
        request.host = []
        self.num_requests -= 1

    def flush(self) -> tuple[Pairs, Pairs]:
        """What the next step moves out and in."""
        moves = self._out, self._in
        self._out, self._in = [], []
        return moves
