"""PrefixIndex of prompts that were sent to each engine, as an estimate of what its cache holds.

A prompt is cut into pieces. The hash of a piece covers everything before it, so one hash names one prefix. For each
hash there is one integer with a bit per engine: the cost of a lookup does not grow with the number of engines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import xxhash


def hashes(model: str, prompt: bytes, size: int, most: int) -> list[int]:
    """Hashes of the prompt's whole pieces of `size` bytes, at most so many. Adapters do not share cache entries."""
    state = xxhash.xxh3_64(model.encode())
    view, found = memoryview(prompt), []
    for start in range(0, min(len(prompt), size * most) - size + 1, size):
        state.update(view[start : start + size])
        found.append(state.intdigest())
    return found


class PrefixIndex:
    def __init__(self, capacity: int) -> None:
        """`capacity`: prefixes remembered per engine, the least recently used are forgotten first."""
        self.capacity = capacity
        self._engines: dict[int, int] = {}
        self._recent: dict[int, OrderedDict[int, None]] = {}
        self._next = 0

    def of(self, bit: int) -> int:
        """Number of prefixes remembered of an engine."""
        return len(self._recent[bit])

    def new_engine(self) -> int:
        """The bit of a further engine."""
        free = next((bit for bit in _each((1 << self._next) - 1) if bit not in self._recent), None)
        if free is None:
            free, self._next = 1 << self._next, self._next + 1
        self._recent[free] = OrderedDict()
        return free

    def remove(self, bit: int) -> None:
        self.clear(bit)
        del self._recent[bit]

    def clear(self, bit: int) -> None:
        """The engine's cache is lost."""
        recent = self._recent[bit]
        while recent:
            self._drop(recent.popitem()[0], bit)

    def lengths(self, pieces: Sequence[int], bits: int) -> dict[int, int]:
        """For each engine in `bits` that knows a prefix: the number of its pieces."""
        found: dict[int, int] = {}
        for number, piece in enumerate(pieces):
            knowing = bits & self._engines.get(piece, 0)
            for bit in _each(bits & ~knowing) if number else ():
                found[bit] = number
            bits = knowing
            if not bits:
                return found
        return found | dict.fromkeys(_each(bits), len(pieces))

    def add(self, pieces: Sequence[int], bit: int) -> None:
        engines, recent = self._engines, self._recent[bit]
        for piece in reversed(pieces):  # a prefix is evicted after the longer ones that begin with it
            engines[piece] = engines.get(piece, 0) | bit
            recent[piece] = None
            recent.move_to_end(piece)
        while len(recent) > self.capacity:
            self._drop(recent.popitem(last=False)[0], bit)

    def _drop(self, piece: int, bit: int) -> None:
        left = self._engines[piece] & ~bit
        if left:
            self._engines[piece] = left
        else:
            del self._engines[piece]


def _each(bits: int) -> list[int]:
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit)
        bits ^= bit
    return found
