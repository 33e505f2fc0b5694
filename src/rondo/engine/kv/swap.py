"""Preempted requests whose blocks wait in host memory: who goes there, and which blocks move. No clock, no device.

A swapped request keeps how far it has come and the very keys and values it had, so it goes on as if it had not been
preempted: after a push, too, it resumes over its old ones and publishes nothing, as a running request does.

Host blocks are counted like the device's. One that several swapped requests hold (samples that rode together, a
prompt they share) is there once. Each group of layers has host blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rondo.engine.kv.blocks import Identity, Table
from rondo.engine.kv.groups import GroupedPool, Moves
from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class Cost:
    """What it takes to move bytes and to compute tokens, as measured or configured.

    `attention` has, for each kind of layer, its window and how many tokens' worth of all other work it takes to let
    one token see one other.
    """

    bytes_per_second: float
    tokens_per_second: float
    attention: tuple[tuple[int | None, float], ...] = ()
    latency: float = 0.0
    """Seconds that a move takes before its first byte."""

    def move_seconds(self, size: int) -> float:
        return self.latency + size / self.bytes_per_second if size else 0.0

    def work(self, start: int, stop: int) -> float:
        """Computing tokens `start` to `stop`, in tokens that see nothing."""
        seen = sum(price * (_seen(stop, window) - _seen(start, window)) for window, price in self.attention)
        return stop - start + seen

    def compute_seconds(self, start: int, stop: int) -> float:
        return self.work(start, stop) / self.tokens_per_second

    def swap_pays(self, out: int, back: int, start: int, stop: int) -> bool:
        """Whether moving `out` bytes away and `back` again is faster than computing tokens `start` to `stop`."""
        return self.move_seconds(out) + self.move_seconds(back) < self.compute_seconds(start, stop)


def _seen(length: int, window: int | None) -> float:
    """Pairs of a token and one that it sees, itself included."""
    inside = length if window is None else min(length, window)
    return inside * (inside + 1) / 2 + (length - inside) * inside


class HostPool:
    """Of one group: which host blocks are taken, by how many requests, and where a published block has its copy."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
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

    def hold(self, identity: Identity | None) -> tuple[int, bool]:
        """A block for one more owner, and whether it is a new one. The caller has made sure that one is free."""
        block = self.find(identity)
        if block is not None:
            self._refs[block] += 1
            return block, False
        block = self._free.pop()
        self._refs[block] = 1
        if identity is not None:
            self._index[identity] = block
            self._identity[block] = identity
        return block, True

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
    def __init__(self, pool: GroupedPool, hosts: Sequence[HostPool], cost: Cost) -> None:
        self.pool = pool
        self.hosts = hosts
        self.cost = cost
        self.num_requests = 0
        self.blocks_out = 0
        self.blocks_in = 0
        self._out: Moves = [[] for _ in hosts]
        self._in: Moves = [[] for _ in hosts]

    @property
    def usage(self) -> float:
        """The share of host blocks in use, 0 to 1, where it is the highest."""
        return max(host.used / host.num_blocks for host in self.hosts)

    def keep(self, request: Request) -> bool:
        """Books places for the blocks of a request that is being preempted, if they fit and moving them pays."""
        count = self.pool.blocks_for(request.computed)
        wanted = [
            [(block, group.identity(block)) for block in table.blocks[table.passed : count]]
            for group, table in zip(self.pool.groups, request.tables, strict=True)
        ]
        missing = [
            sum(host.find(identity) is None for _, identity in blocks)
            for host, blocks in zip(self.hosts, wanted, strict=True)
        ]
        fits = all(need <= host.available for need, host in zip(missing, self.hosts, strict=True))
        if not fits or not self._pays(request, missing):
            return False
        for host, blocks, table, out in zip(self.hosts, wanted, request.tables, self._out, strict=True):
            copies = Table([], table.passed)
            for block, identity in blocks:
                copy, is_new = host.hold(identity)
                copies.blocks.append(copy)
                if is_new:
                    out.append((copy, block))
            request.host.append(copies)
        self.num_requests += 1
        self.blocks_out += sum(missing)
        return True

    def _pays(self, request: Request, missing: Sequence[int]) -> bool:
        """What others hold and publish will be found again either way; it is copied all the same, because they may
        have gone by then, and after a push it is this copy that the request goes on with."""
        count, first = self.pool.blocks_for(request.computed), request.tables[0]
        others_hold = takewhile(self.pool.groups[0].is_shared, first.blocks[:count])
        shared = 0 if first.passed else sum(1 for _ in others_hold)
        out = back = 0
        for host, need, table in zip(self.hosts, missing, request.tables, strict=True):
            out += need * host.block_bytes
            back += (count - max(shared, table.passed)) * host.block_bytes
        start = shared * self.pool.block_size
        return self.cost.swap_pays(out, back, start, max(start, request.computed))

    def ride(self, rider: Request, leader: Request) -> None:
        """A sample that rode on a swapped one has come as far, and may come back alone."""
        rider.follow(leader)
        rider.host = [Table(copies.blocks.copy(), copies.passed) for copies in leader.host]
        for host, copies in zip(self.hosts, rider.host, strict=True):
            host.share(copies.blocks)
        self.num_requests += 1

    def restore(self, request: Request, there: Sequence[int]) -> None:
        """Its blocks come back to new ones, but for the first, of which so many were found on the device."""
        count = self.pool.blocks_for(request.computed)
        for table, copies, first, back in zip(request.tables, request.host, there, self._in, strict=True):
            blocks = table.blocks[first:count]
            back += zip(blocks, copies.blocks[first - copies.passed :], strict=True)
            self.blocks_in += len(blocks)
        self.drop(request)

    def drop(self, request: Request) -> None:
        """The request needs its copies no more."""
        for host, copies in zip(self.hosts, request.host, strict=True):
            host.release(copies.blocks)
        request.host = []
        self.num_requests -= 1

    def flush(self) -> tuple[Moves, Moves]:
        """What the next step moves out and in."""
        moves = self._out, self._in
        self._out, self._in = [[] for _ in self.hosts], [[] for _ in self.hosts]
        return moves
