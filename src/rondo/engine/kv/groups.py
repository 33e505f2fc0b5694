"""The KV blocks of a whole model: a pool for each group of layers (see `window.py`).

A request has a table in each group, and all tables have a block for the same tokens. In a group with a window the first
ones have passed and are GONE: so a model of few layers that see everything holds, of a long request, little more than
those layers' blocks.

A beginning of a request is in the prefix cache where each group has of it what the next token sees.
"""

from __future__ import annotations

from collections.abc import Sequence

from rondo.engine.kv.blocks import GONE, BlockPool, Table, link, link_for_good
from rondo.engine.schedule.request import Request

Pairs = list[tuple[int, int]]
"""Blocks that move, (to, from) each."""
Moves = list[Pairs]
"""For each group."""


class GroupedPool:
    def __init__(self, groups: Sequence[BlockPool]) -> None:
        """The group that sees the most first."""
        self.groups = groups
        self.block_size = groups[0].block_size
        self.prefix_cache = groups[0].prefix_cache
        self._link = link if all(group.window is None for group in groups) else link_for_good

    @property
    def available(self) -> int:
        """How many blocks a request can get, one of each group being one."""
        return min([group.available for group in self.groups])

    @property
    def used(self) -> int:
        return sum(group.used for group in self.groups)

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1, where it is the highest."""
        return max(group.used / group.num_blocks for group in self.groups)

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def missing(self, request: Request, length: int) -> int:
        """How many blocks it needs for so many tokens, beside those it has."""
        return self.blocks_for(length) - len(request.tables[0].blocks)

    def grow(self, request: Request, length: int) -> None:
        """Gives it the blocks for so many tokens. The caller has made sure that they are there."""
        count = self.blocks_for(length)
        for group, table in zip(self.groups, request.tables, strict=True):
            table.blocks += group.allocate(count - len(table.blocks))

    def shrink(self, request: Request, length: int) -> None:
        """Takes back what it has for more than so many tokens."""
        count = self.blocks_for(length)
        for group, table in zip(self.groups, request.tables, strict=True):
            group.release(table.blocks[count:])
            del table.blocks[count:]

    def let_pass(self, request: Request) -> None:
        """Gives back the blocks that no layer of their group sees any more."""
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
        """By how many tokens it moves, with `tables` as its own. Where blocks pass it never needs room for all of them
        at once, so that its piece is cut to what is free, and nobody else has to give way."""
        count = min(request.remaining, budget)
        for group, table in zip(self.groups, tables, strict=True):
            if group.window is not None:
                room = (len(table.blocks) + group.available) * self.block_size - request.computed
                count = min(count, max(1, room))
        return count

    def holds(self, request: Request, found: Sequence[Table]) -> bool:
        """Whether it fits beside what runs, with `found` already there; if so, it holds that. Not only the first piece
        must fit: a prompt let in by halves would soon be thrown out again."""
        for group, table in zip(self.groups, found, strict=True):
            group.share(table.blocks)
        length = len(request.tokens)
        if all(_to_come(*each, length) <= each[0].available for each in zip(self.groups, found, strict=True)):
            return True
        self.release(found)
        return False

    def fork(self, leader: Request, request: Request) -> Moves | None:
        """Tables for a request that goes on where the leader is: full blocks are shared, and of the one that is not
        full yet it gets a copy. Returns what is to be copied, or None if no block is left for that."""
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
        """`adapter` is the key of an adapter's content, 0 for the base; `salt` is the request's, and 0 is none."""
        return hash((weight_version, adapter, salt) if salt else (weight_version, adapter))

    def extend_keys(self, keys: list[int], root: int, tokens: Sequence[int]) -> None:
        """Brings the chain of block hashes up to the last full block of `tokens`."""
        size = self.block_size
        parent = keys[-1] if keys else root
        for start in range(len(keys) * size, len(tokens) - size + 1, size):
            parent = self._link(parent, tokens[start : start + size])
            keys.append(parent)

    def none(self) -> list[Table]:
        return [Table([]) for _ in self.groups]

    def match(self, keys: Sequence[int], root: int, tokens: Sequence[int], limit: int) -> list[Table]:
        """The longest published beginning of `tokens`, at most `limit` blocks of it: as far as all groups have it."""
        while True:
            found = []
            for group in self.groups:
                found.append(group.match(keys, root, tokens, limit))
                limit = len(found[-1])
            if all(len(blocks) == limit for blocks in found):
                return [Table(blocks, blocks.count(GONE)) for blocks in found]

    def publish(self, request: Request, i: int, root: int) -> bool:
        """Makes its computed block number `i` findable. False if its hash belongs to other content."""
        size, parent = self.block_size, request.keys[i - 1] if i else root
        tokens = request.tokens[i * size : (i + 1) * size]
        return all(
            group.publish(table.blocks[i], request.keys[i], parent, tokens)
            for group, table in zip(self.groups, request.tables, strict=True)
            if table.blocks[i] != GONE
        )

    def forget(self) -> None:
        """Empties the prefix cache; blocks in use stay with their owners but are no longer found."""
        for group in self.groups:
            group.forget()

    def check(self) -> None:
        for group in self.groups:
            group.check()


def _to_come(group: BlockPool, table: Table, length: int) -> int:
    """The most blocks that a request of so many tokens will hold there at once, beside those of `table`."""
    come = group.blocks_for(length) - len(table.blocks)
    if group.window is None:
        return come
    return min(come, group.window.most_blocks - (len(table.blocks) - table.passed))
