"""Who owns which KV block, and which blocks hold a prefix that somebody may want again.

A block is *used* (someone holds it), *cached* (nobody holds it, but its content is published and can be hit until it
is evicted, least recently used first) or *free*. The three always add up to the pool.

A published block's identity is a hash chain over (parent, token ids), rooted in the weight version and the adapter. The
hash only finds a candidate: a hit compares parent and token ids, so two prompts never share a block by accident.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._index: dict[int, int] = {}
        self._identity: list[tuple[int, int, tuple[int, ...]] | None] = [None] * num_blocks

    @property
    def available(self) -> int:
        """Blocks that can be handed out, by eviction if need be."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return self.num_blocks - self.available

    def blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """The caller has made sure that `count <= available`."""
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more owner for blocks that `match` found."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Last block first: a prefix outlives its continuations, without which they could not be reached."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._identity[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def root(self, weight_version: int, adapter: int = 0) -> int:
        """`adapter` is the key of an adapter's content; 0 is the base alone."""
        return hash((weight_version, adapter))

    def extend_keys(self, keys: list[int], root: int, tokens: Sequence[int]) -> None:
        """Brings the chain of block hashes up to the last full block of `tokens`."""
        size = self.block_size
        parent = keys[-1] if keys else root
        for start in range(len(keys) * size, len(tokens) - size + 1, size):
            parent = hash((parent, tuple(tokens[start : start + size])))
            keys.append(parent)

    def match(self, keys: Sequence[int], root: int, tokens: Sequence[int], limit: int) -> list[int]:
        """The longest chain of published blocks that `tokens` begins with, at most `limit`."""
        found: list[int] = []
        parent, size = root, self.block_size
        for i in range(min(limit, len(keys))):
            block = self._index.get(keys[i])
            if block is None or self._identity[block] != (
                keys[i],
                parent,
                tuple(tokens[i * size : (i + 1) * size]),
            ):
                break
            found.append(block)
            parent = keys[i]
        return found

    def publish(self, block: int, key: int, parent: int, tokens: Sequence[int]) -> bool:
        """Makes a computed block findable. False if the hash belongs to other content: then nothing that follows
        may be published under it either, since its children would be reached through the wrong parent."""
        identity = (key, parent, tuple(tokens))
        holder = self._index.get(key)
        if holder is not None:
            return self._identity[holder] == identity
        self._index[key] = block
        self._identity[block] = identity
        return True

    def published(self, key: int) -> bool:
        return key in self._index

    def forget(self) -> None:
        """Empties the prefix cache; blocks in use stay with their owners but are no longer found."""
        self._index.clear()
        self._identity = [None] * self.num_blocks
        self._free.extend(self._cached)
        self._cached.clear()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        identity = self._identity[block]
        assert identity is not None
        del self._index[identity[0]]
        self._identity[block] = None
        return block

    def check(self) -> None:
        """Integrity: every block is in exactly one state, and the index and the blocks agree."""
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
