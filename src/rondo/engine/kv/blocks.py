"""Ownership of the KV blocks of a layer group, and the prefix cache over them.

A block is *used* (it has owners), *cached* (it has no owner, but its content is published and can be hit until it is
evicted, least recently used first) or *free*. The three counts always add up to the pool.

A published block's identity is a hash chain over (parent, token ids), rooted in the weight version, the adapter and the
request's cache salt. The hash only selects a candidate: a hit compares parent and token ids, so two prompts never share
a block by accident.

With a sliding window, a hit needs only the blocks inside the next token's window. Earlier blocks may have been evicted,
so that their tokens cannot be compared; there the hash is a SHA-256, which identifies them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from rondo.engine.kv.events import CacheEvents
from rondo.engine.kv.window import Window

Identity = tuple[int, int, tuple[int, ...]]
"""Hash of a block, hash of its parent, token ids."""

GONE = -1
"""Table entry of a block that has left the window of every layer and was released."""


@dataclass(slots=True)
class Table:
    """A request's blocks in one group of layers, in the order of its tokens; the first `passed` of them are GONE."""

    blocks: list[int]
    passed: int = 0


class BlockPool:
    def __init__(
        self, num_blocks: int, block_size: int, prefix_cache: bool = True, window: Window | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.window = window
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._index: dict[int, int] = {}
        self._identity: list[Identity | None] = [None] * num_blocks
        self.events: CacheEvents | None = None

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated, by eviction if necessary."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return self.num_blocks - self.available

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Allocates `count` blocks. The caller must check that `count <= available`."""
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Adds an owner to blocks that `match` returned."""
        for block in blocks:
            if block == GONE:
                continue
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Releases the last block first: a prefix outlives its continuations, which could not be reached without it."""
        for block in reversed(blocks):
            if block == GONE:
                continue
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._identity[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def match(self, keys: Sequence[int], root: int, tokens: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest published prefix of `tokens`, at most `limit` of them. Blocks outside the next token's
        window are GONE."""
        if self.window is not None:
            return self._match_tail(self.window, keys, root, tokens, min(limit, len(keys)))
        found: list[int] = []
        for i in range(min(limit, len(keys))):
            block = self._lookup(keys, root, tokens, i)
            if block is None:
                break
            found.append(block)
        return found

    def _match_tail(
        self, window: Window, keys: Sequence[int], root: int, tokens: Sequence[int], count: int
    ) -> list[int]:
        """Searches from the last block backwards, until the window of the next token is covered by
        consecutive blocks."""
        tail: list[int] = []
        for i in range(count - 1, -1, -1):
            block = self._lookup(keys, root, tokens, i)
            if block is None:
                tail, count = [], i
                continue
            tail.append(block)
            if i <= window.passed(count * self.block_size):
                break
        return [GONE] * (count - len(tail)) + tail[::-1]

    def _lookup(self, keys: Sequence[int], root: int, tokens: Sequence[int], i: int) -> int | None:
        """The published block with index `i` of `tokens`, or None."""
        block = self._index.get(keys[i])
        size, parent = self.block_size, keys[i - 1] if i else root
        if block is None or self._identity[block] != (
            keys[i],
            parent,
            tuple(tokens[i * size : (i + 1) * size]),
        ):
            return None
        return block

    def publish(self, block: int, key: int, parent: int, tokens: Sequence[int]) -> bool:
        """Adds a computed block to the prefix cache. Returns False if the hash belongs to other content; the blocks
        after it must not be published either, since they would be reached through the wrong parent."""
        identity = (key, parent, tuple(tokens))
        holder = self._index.get(key)
        if holder is not None:
            return self._identity[holder] == identity
        self._index[key] = block
        self._identity[block] = identity
        return True

    def published(self, key: int) -> bool:
        return key in self._index

    def identity(self, block: int) -> Identity | None:
        """Identity under which the block is published, or None."""
        return self._identity[block]

    def is_shared(self, block: int) -> bool:
        """Whether the block is published and has more than one owner."""
        return self._refs[block] > 1 and self._identity[block] is not None

    def forget(self) -> None:
        """Empties the prefix cache; used blocks stay with their owners but can no longer be hit."""
        self._index.clear()
        self._identity = [None] * self.num_blocks
        self._free.extend(self._cached)
        self._cached.clear()
        if self.events is not None:
            self.events.emptied()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        identity = self._identity[block]
        assert identity is not None
        del self._index[identity[0]]
        self._identity[block] = None
        if self.events is not None:
            self.events.evicted(identity[0])
        return block

    def check(self) -> None:
        """Checks the invariants: every block is in exactly one state, and index and blocks agree."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, refs in enumerate(self._refs) if refs > 0}
        assert len(free) == len(self._free)
        assert not free & cached
        assert not free & used
        assert not cached & used
        assert len(free) + len(cached) + len(used) == self.num_blocks
        assert all(refs >= 0 for refs in self._refs)
        assert all(self._identity[block] is None for block in free)
        assert all(self._identity[block] is not None for block in cached)
        named = {identity[0]: b for b, identity in enumerate(self._identity) if identity is not None}
        assert named == self._index


def salt_of(text: str) -> int:
    """A hash that is the same in every process, unlike `hash`, and never 0, which means no salt."""
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:31], "little") | 1


def link(parent: int, tokens: Sequence[int]) -> int:
    return hash((parent, tuple(tokens)))


def link_for_good(parent: int, tokens: Sequence[int]) -> int:
    """A collision-free hash (SHA-256)."""
    content = parent.to_bytes(32, "little", signed=True) + array("q", tokens).tobytes()
    return int.from_bytes(sha256(content).digest()[:31], "little")
