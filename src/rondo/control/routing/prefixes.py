"""Prefixes in the cache of each engine.

For each prefix hash (`client/protocol/prefix.py`) there is one integer with a bit per engine: the cost of a lookup does
not grow with the number of engines.

An engine that reports the prefixes that it stores and drops is followed exactly. Prefixes of requests that it was sent
count as well, until the request has ended and the engine has reported twice. The prefixes of any other engine are an
estimate: those that it was sent, of which the least recently used are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class _Memory:
    """Prefixes of one engine."""

    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Stored by its report, or sent to it; the latest use last."""
    exact: bool = False
    """Whether the engine reports its prefixes."""
    expected: dict[int, int] = field(default_factory=dict)
    """Prefixes that are not stored, of requests that it was sent, with the number of these requests."""
    ended: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Expected prefixes of requests that ended before the latest report, and since."""


class PrefixIndex:
    def __init__(self, capacity: int) -> None:
        """`capacity`: prefixes remembered of an engine without reports."""
        self.capacity = capacity
        self._engines: dict[int, int] = {}
        self._memory: dict[int, _Memory] = {}
        self._next = 0

    def of(self, bit: int) -> int:
        """Number of prefixes that the engine is assumed to have."""
        memory = self._memory[bit]
        return len(memory.held) + len(memory.expected)

    def exact(self, bit: int) -> bool:
        """Whether the engine's prefixes are those that it reports."""
        return self._memory[bit].exact

    def new_engine(self) -> int:
        """The bit of a further engine."""
        free = next((bit for bit in _each((1 << self._next) - 1) if bit not in self._memory), None)
        if free is None:
            free, self._next = 1 << self._next, self._next + 1
        self._memory[free] = _Memory()
        return free

    def remove(self, bit: int) -> None:
        self.clear(bit)
        del self._memory[bit]

    def clear(self, bit: int) -> None:
        """The engine's cache is lost, or its reports have ended."""
        memory = self._memory[bit]
        for pieces in (memory.held, memory.expected):
            for piece in pieces:
                self._drop(piece, bit)
        self._memory[bit] = _Memory()

    def lengths(self, pieces: Sequence[int], bits: int) -> dict[int, int]:
        """For each engine in `bits` that has a prefix: the number of its pieces."""
        found: dict[int, int] = {}
        known = self._engines.get
        for number, piece in enumerate(pieces):
            having = bits & known(piece, 0)
            if having != bits:
                if number:
                    found |= dict.fromkeys(_each(bits & ~having), number)
                if not having:
                    return found
                bits = having
        return found | dict.fromkeys(_each(bits), len(pieces))

    def add(self, pieces: Sequence[int], bit: int) -> None:
        """A request with this prefix is sent to the engine."""
        engines, memory = self._engines, self._memory[bit]
        held = memory.held
        if memory.exact:
            for piece in pieces:
                if piece not in held:
                    memory.expected[piece] = memory.expected.get(piece, 0) + 1
                    engines[piece] = engines.get(piece, 0) | bit
            return
        for piece in reversed(pieces):  # a prefix is evicted after the longer ones that begin with it
            if piece not in held:
                held[piece] = None
                engines[piece] = engines.get(piece, 0) | bit
            held.move_to_end(piece)
        while len(held) > self.capacity:
            self._drop(held.popitem(last=False)[0], bit)

    def end(self, pieces: Sequence[int], bit: int) -> None:
        """A request with this prefix has ended at the engine."""
        memory = self._memory[bit]
        if memory.expected:
            memory.ended[1].extend(piece for piece in pieces if piece in memory.expected)

    def report(self, bit: int, stored: Iterable[int], dropped: Iterable[int], whole: bool) -> None:
        """Changes that the engine reports; `whole`: `stored` is all that it has."""
        if whole:
            expected, ended = self._memory[bit].expected, self._memory[bit].ended
            self.clear(bit)
            self._memory[bit] = _Memory(exact=True, expected=expected, ended=ended)
            for piece in expected:
                self._engines[piece] = self._engines.get(piece, 0) | bit
        memory = self._memory[bit]
        if not memory.exact:
            return  # the memory was cleared since: changes alone do not restore it
        for piece in stored:
            memory.held[piece] = None
            memory.expected.pop(piece, None)
            self._engines[piece] = self._engines.get(piece, 0) | bit
        for piece in dropped:
            if piece in memory.held:
                del memory.held[piece]
                if piece not in memory.expected:
                    self._drop(piece, bit)
        for piece in memory.ended[0]:
            self._expect_less(memory, piece, bit)
        memory.ended = (memory.ended[1], [])

    def _expect_less(self, memory: _Memory, piece: int, bit: int) -> None:
        count = memory.expected.get(piece, 0)
        if count > 1:
            memory.expected[piece] = count - 1
        elif count:
            del memory.expected[piece]
            if piece not in memory.held:
                self._drop(piece, bit)

    def _drop(self, piece: int, bit: int) -> None:
        left = self._engines.get(piece, 0) & ~bit
        if left:
            self._engines[piece] = left
        else:
            self._engines.pop(piece, None)


def _each(bits: int) -> list[int]:
    found = []
    while bits:
        bit = bits & -bits
        found.append(bit)
        bits ^= bit
    return found
