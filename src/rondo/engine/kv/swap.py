"""Swapping of preempted requests to host memory: which requests are swapped and which blocks move. No clock, no device.

A swapped request retains its progress and its exact keys and values, so that it continues as if it had not been
preempted. After a weight update it resumes over its old keys and values and publishes nothing, like a running request.

Host blocks are reference-counted like device blocks. A block that several swapped requests share (samples of one
prompt) is stored once. Each group of layers has its own host blocks.
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
    """Cost model for moving bytes and computing tokens, measured or configured.

    `attention` holds, for each kind of layer, its window and the cost of one (query, key) pair in units of a token's
    other work.
    """

    bytes_per_second: float
    tokens_per_second: float
    attention: tuple[tuple[int | None, float], ...] = ()
    latency: float = 0.0
    """Seconds before the first byte of a move."""

    def move_seconds(self, size: int) -> float:
        return self.latency + size / self.bytes_per_second if size else 0.0

    def work(self, start: int, stop: int) -> float:
        """Work of computing tokens `start` to `stop`, in units of a token without attention."""
        seen = sum(price * (_seen(stop, window) - _seen(start, window)) for window, price in self.attention)
        return stop - start + seen

    def compute_seconds(self, start: int, stop: int) -> float:
        return self.work(start, stop) / self.tokens_per_second

    def swap_pays(self, out: int, back: int, start: int, stop: int) -> bool:
        """Whether moving `out` bytes to the host and `back` bytes to the device is faster than recomputing tokens
        `start` to `stop`."""
        return self.move_seconds(out) + self.move_seconds(back) < self.compute_seconds(start, stop)


def _seen(length: int, window: int | None) -> float:
    """Number of (query, key) pairs, each token with itself included."""
    inside = length if window is None else min(length, window)
    return inside * (inside + 1) / 2 + (length - inside) * inside


class HostPool:
    """Host blocks of one group: reference counts, and the host copy of each published block."""

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
        """Adds an owner to the block with this identity. Returns the block and whether it is new. The caller must check
        that a block is free."""
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
        """Releases the last block first, so that the next request receives ascending neighbours, which
        move together."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.append(block)
                identity, self._identity[block] = self._identity[block], None
                if identity is not None:
                    del self._index[identity]

    def check(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Checks the invariants; `held` are the blocks of every swapped request."""
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
        """Share of host blocks in use, 0 to 1, of the fullest group."""
        return max(host.used / host.num_blocks for host in self.hosts)

    def keep(self, request: Request) -> bool:
        """Reserves host blocks for a request that is being preempted, if they fit and swapping is faster than
        recomputation."""
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
        """Whether swapping is faster than recomputation. Shared published blocks will be hit in the prefix cache in
        both cases. They are copied nevertheless: they may have been evicted by then, and after a weight update the
        request continues with this copy."""
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
        """Swaps a follower of a swapped leader: it has the same progress and may resume on its own."""
        rider.follow(leader)
        rider.host = [Table(copies.blocks.copy(), copies.passed) for copies in leader.host]
        for host, copies in zip(self.hosts, rider.host, strict=True):
            host.share(copies.blocks)
        self.num_requests += 1

    def restore(self, request: Request, there: Sequence[int]) -> None:
        """Schedules moves of the request's blocks to its new device blocks, except the first `there` of each group,
        which were prefix-cache hits."""
        count = self.pool.blocks_for(request.computed)
        for table, copies, first, back in zip(request.tables, request.host, there, self._in, strict=True):
            blocks = table.blocks[first:count]
            back += zip(blocks, copies.blocks[first - copies.passed :], strict=True)
            self.blocks_in += len(blocks)
        self.drop(request)

    def drop(self, request: Request) -> None:
        """Releases the request's host copies."""
        for host, copies in zip(self.hosts, request.host, strict=True):
            host.release(copies.blocks)
        request.host = []
        self.num_requests -= 1

    def flush(self) -> tuple[Moves, Moves]:
        """The moves out and in of the next step."""
        moves = self._out, self._in
        self._out, self._in = [[] for _ in self.hosts], [[] for _ in self.hosts]
        return moves
