"""KV blocks of a whole model: one pool per group of layers (see `window.py`).

A request has a table in each group, and all tables have an entry for the same tokens. In a group with a window, blocks
before the window are released and marked GONE. A long request of a model with few full-attention layers therefore holds
little more than the blocks of those layers.

A prefix is a cache hit if every group has the blocks inside the next token's window.
"""

from __future__ import annotations

from collections.abc import Sequence

from rondo.engine.kv.blocks import GONE, BlockPool, Table, link, link_for_good
from rondo.engine.kv.events import CacheEvents
from rondo.engine.schedule.request import Request

Pairs = list[tuple[int, int]]
"""Block moves, (to, from) each."""
Moves = list[Pairs]
"""Block moves of each group."""


class GroupedPool:
    def __init__(self, groups: Sequence[BlockPool]) -> None:
        """Takes the pools of all groups, the one with the largest window first."""
        self.groups = groups
        self.block_size = groups[0].block_size
        self.prefix_cache = groups[0].prefix_cache
        self._link = link if all(group.window is None for group in groups) else link_for_good

    def record_events(self) -> CacheEvents:
        """Records the prefixes that are stored and dropped, for routers. A prefix is stored while all groups have its
        last block."""
        events = CacheEvents(lambda key: all(group.published(key) for group in self.groups), self.block_size)
        for group in self.groups:
            group.events = events
        return events

    @property
    def available(self) -> int:
        """Number of blocks that a request can allocate, where one block means one in each group."""
        return min([group.available for group in self.groups])

    @property
    def used(self) -> int:
        return sum(group.used for group in self.groups)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1, of the fullest group."""
        return max(group.used / group.num_blocks for group in self.groups)

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def missing(self, request: Request, length: int) -> int:
        """Number of blocks that the request lacks for `length` tokens."""
        return self.blocks_for(length) - len(request.tables[0].blocks)

    def grow(self, request: Request, length: int) -> None:
        """Allocates the blocks for `length` tokens. The caller must check that they are available."""
        count = self.blocks_for(length)
        for group, table in zip(self.groups, request.tables, strict=True):
            table.blocks += group.allocate(count - len(table.blocks))

    def shrink(self, request: Request, length: int) -> None:
        """Releases the blocks beyond `length` tokens."""
        count = self.blocks_for(length)
        for group, table in zip(self.groups, request.tables, strict=True):
            group.release(table.blocks[count:])
            del table.blocks[count:]

    def let_pass(self, request: Request) -> None:
        """Releases the blocks that have left the window of their group."""
        for group, table in zip(self.groups, request.tables, strict=True):
            if group.window is None:
                continue
            before, passed = table.passed, group.window.passed(request.computed)
            if passed > before:
                group.release(table.blocks[before:passed])
                table.blocks[before:passed] = [GONE] * (passed - before)
                table.passed = passed

    def release(self, tables: Sequence[Table]) -> None:
        for group, table in zip(self.groups, tables, strict=False):
            group.release(table.blocks)

    def piece(self, request: Request, tables: Sequence[Table], budget: int) -> int:
        """Number of tokens that the request computes in this step, with `tables` as its own. In a group with a window,
        the chunk is cut to the free blocks, because earlier blocks are released as the window moves; no other request
        is preempted for it."""
        count = min(request.remaining, budget)
        for group, table in zip(self.groups, tables, strict=True):
            if group.window is not None:
                room = (len(table.blocks) + group.available) * self.block_size - request.computed
                count = min(count, max(1, room))
        return count

    def holds(self, request: Request, found: Sequence[Table]) -> bool:
        """Whether the request fits next to the running ones, given the cached blocks `found`; if so, it becomes an
        owner of them. The whole request must fit, not only its first chunk: a partially admitted prompt would soon be
        preempted."""
        for group, table in zip(self.groups, found, strict=True):
            group.share(table.blocks)
        length = len(request.tokens)
        if all(_to_come(*each, length) <= each[0].available for each in zip(self.groups, found, strict=True)):
            return True
        self.release(found)
        return False

    def fork(self, leader: Request, request: Request) -> Moves | None:
        """Creates the tables of a request that continues from the leader: full blocks are shared, the last partial
        block is copied. Returns the copies to make, or None if there is no free block for them."""
        whole, rest = divmod(leader.computed, self.block_size)
        if rest and not self.available:
            return None
        request.tables = [Table(table.blocks[:whole], table.passed) for table in leader.tables]
        for group, table in zip(self.groups, request.tables, strict=True):
            group.share(table.blocks)
        if not rest:
            return [[] for _ in self.groups]
        self.grow(request, leader.computed)
        both = zip(request.tables, leader.tables, strict=True)
        return [[(own.blocks[whole], others.blocks[whole])] for own, others in both]

    def root(self, weight_version: int, adapter: int = 0, salt: int = 0) -> int:
        """Root of the hash chain. `adapter` is the key of an adapter's content, 0 for the base model; `salt` is the
        request's cache salt, 0 for none."""
        return hash((weight_version, adapter, salt) if salt else (weight_version, adapter))

    def extend_keys(self, keys: list[int], root: int, tokens: Sequence[int]) -> None:
        """Extends the chain of block hashes up to the last full block of `tokens`."""
        size = self.block_size
        parent = keys[-1] if keys else root
        for start in range(len(keys) * size, len(tokens) - size + 1, size):
            parent = self._link(parent, tokens[start : start + size])
            keys.append(parent)

    def none(self) -> list[Table]:
        return [Table([]) for _ in self.groups]

    def match(self, keys: Sequence[int], root: int, tokens: Sequence[int], limit: int) -> list[Table]:
        """Longest published prefix of `tokens` that all groups have, at most `limit` blocks."""
        while True:
            found = []
            for group in self.groups:
                found.append(group.match(keys, root, tokens, limit))
                limit = len(found[-1])
            if all(len(blocks) == limit for blocks in found):
                return [Table(blocks, blocks.count(GONE)) for blocks in found]

    def publish(self, request: Request, i: int, root: int) -> bool:
        """Publishes the request's computed block with index `i`. Returns False if its hash belongs to other content."""
        size, parent = self.block_size, request.keys[i - 1] if i else root
        tokens = request.tokens[i * size : (i + 1) * size]
        return all(
            group.publish(table.blocks[i], request.keys[i], parent, tokens)
            for group, table in zip(self.groups, request.tables, strict=True)
            if table.blocks[i] != GONE
        )

    def forget(self) -> None:
        """Empties the prefix cache; used blocks stay with their owners but can no longer be hit."""
        for group in self.groups:
            group.forget()

    def check(self) -> None:
        for group in self.groups:
            group.check()


def _to_come(group: BlockPool, table: Table, length: int) -> int:
    """Maximum number of further blocks that a request of `length` tokens holds at once, beside the
    blocks of `table`."""
    come = group.blocks_for(length) - len(table.blocks)
    if group.window is None:
        return come
    return min(come, group.window.most_blocks - (len(table.blocks) - table.passed))
