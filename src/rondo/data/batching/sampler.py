"""The order of the data, a function of the seed and of the position only.

Documents are cut into spans only if they are longer than the context. The spans of each source are permuted in each
epoch. Sources are interleaved so that their shares of the tokens equal their weights. A step takes spans in that order
until one does not fit, then the later spans that fill the rest best. The order does not depend on the number of ranks
or on the size of microbatches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest, StorageError

Ints = NDArray[np.int64]

LOOKAHEAD = 256
"""Maximum number of spans searched after the first that does not fit; at most one epoch."""
BLOCK = 1024
"""Number of spans of a source computed at once."""
ROUNDS = 8


@dataclass(frozen=True)
class Position:
    """The state of a sampler."""

    drawn: tuple[int, ...] = ()
    """Number of spans drawn from each source, over all epochs."""
    tokens: tuple[int, ...] = ()
    """Number of tokens in those spans."""
    ahead: tuple[int, ...] = ()
    """Indices of later spans, relative to these, that the sampler has drawn already."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Position:
        """The position from a checkpoint's state."""
        if state.keys() != cls.__dataclass_fields__.keys():
            raise StorageError(
                "the checkpoint's position in the data is of another version of Rondo. Remove the job's "
                "checkpoints to start anew, or finish it with the version that wrote it."
            )
        return cls(**{name: tuple(values) for name, values in state.items()})


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """Tokens `begin` to `end` of a document. The last is a target only: it is the first input of the document's next
    span."""

    source: int
    document: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of input tokens, which equals the number of predictions."""
        return self.end - self.begin - 1


class Shuffle:
    """A permutation of range(count), computed on demand without memory of the size of the data.

    It is a Feistel network over the next power of four, applied repeatedly until the result is in range.
    """

    def __init__(self, count: int, seed: int, epoch: int, stream: int = 0) -> None:
        self._count = count
        self._half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        key = [seed % 2**64, (epoch + (stream << 40)) % 2**64]
        # Philox's raw stream is the same in every NumPy version.
        self._keys = np.random.Philox(key=key).random_raw(ROUNDS).astype(np.uint64)

    def __call__(self, indices: Ints) -> Ints:
        found = self._mix(indices.astype(np.uint64))
        while (outside := found >= self._count).any():
            found[outside] = self._mix(found[outside])
        return found.astype(np.int64)

    def _mix(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_scramble(right + key) & self._mask)
        return (left << self._half) | right


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class DocumentSpans:
    """The spans of a set of documents, in the documents' order. A document of fewer than two tokens has none. Without
    `longest` every document stays whole."""

    def __init__(self, lengths: NDArray[Any], longest: int | None = None) -> None:
        inputs = np.maximum(lengths.astype(np.int64) - 1, 0)
        self._lengths = lengths
        self._longest = longest or max(int(inputs.max(initial=1)), 1)
        self._ends = np.cumsum(-(-inputs // self._longest))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def at(self, indices: Ints, source: int = 0) -> list[DocumentSpan]:
        documents = np.searchsorted(self._ends, indices, side="right")
        firsts = np.where(documents > 0, self._ends[documents - 1], 0)
        begins = (indices - firsts) * self._longest
        ends = np.minimum(begins + self._longest + 1, self._lengths[documents])
        return [
            DocumentSpan(source, document, begin, end)
            for document, begin, end in zip(documents.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]


class _Source:
    """The infinite order of one source, epoch after epoch."""

    def __init__(self, pieces: DocumentSpans, number: int, seed: int) -> None:
        self.pieces, self._number, self._seed = pieces, number, seed
        self._at: tuple[int, int] | None = None
        self._block: list[DocumentSpan] = []

    def piece(self, n: int) -> DocumentSpan:
        epoch, index = divmod(n, len(self.pieces))
        at = epoch, index // BLOCK
        if at != self._at:
            first = at[1] * BLOCK
            wanted = np.arange(first, min(first + BLOCK, len(self.pieces)))
            shuffled = Shuffle(len(self.pieces), self._seed, epoch, self._number)(wanted)
            self._at, self._block = at, self.pieces.at(shuffled, self._number)
        return self._block[index % BLOCK]


class DocumentSampler:
    """`take(position)` returns the spans of one step, at most `budget` tokens unless a single span has more."""

    def __init__(
        self, sources: Sequence[DocumentSpans], weights: Sequence[float], seed: int, budget: int
    ) -> None:
        if not all(map(len, sources)):
            raise InvalidRequest(
                "the data set is empty: no document has enough tokens to learn from", param="data"
            )
        self._sources = [_Source(pieces, number, seed) for number, pieces in enumerate(sources)]
        self._weights = list(weights)
        self._budget = budget
        self._lookahead = min(LOOKAHEAD, sum(map(len, sources)))
        self._next = Position()
        self._ahead: deque[DocumentSpan] = deque()
        """Spans from the next position as far as computed; `_drawn` and `_tokens` are the counts at its end."""
        self._drawn = [0] * len(sources)
        self._tokens = [0] * len(sources)

    def take(self, position: Position) -> tuple[list[DocumentSpan], Position]:
        if position != self._next:
            self._seek(position)
        done = set(position.ahead)
        taken: list[int] = []
        room, first = self._budget, 0
        while first in done or self._peek(first).size <= room or not taken:
            if first not in done:
                taken.append(first)
                room -= self._ahead[first].size
            first += 1
        taken += self._fill(room, [i for i in range(first + 1, first + self._lookahead) if i not in done])
        pieces = [self._ahead[i] for i in taken]
        self._next = self._drop(position, done.union(taken))
        return pieces, self._next

    def epochs(self, position: Position) -> float:
        """Number of epochs of the source with the most."""
        return max(
            n / len(source.pieces)
            for n, source in zip(self._start(position).drawn, self._sources, strict=True)
        )

    def _fill(self, room: int, candidates: Sequence[int]) -> list[int]:
        """Greedy selection of the largest span that fits, the earliest of equal ones."""
        if room <= 0:
            return []
        by_size = sorted((self._peek(i).size, -i) for i in candidates if self._peek(i).size <= room)
        taken = []
        while at := bisect_right(by_size, (room, 0)):
            size, index = by_size.pop(at - 1)
            taken.append(-index)
            room -= size
        return taken

    def _drop(self, position: Position, done: set[int]) -> Position:
        """The position after the gapless prefix of drawn spans."""
        position = self._start(position)
        drawn, tokens, dropped = list(position.drawn), list(position.tokens), 0
        while dropped in done:
            piece = self._ahead.popleft()
            drawn[piece.source] += 1
            tokens[piece.source] += piece.size
            dropped += 1
        ahead = sorted(i - dropped for i in done if i > dropped)
        return Position(tuple(drawn), tuple(tokens), tuple(ahead))

    def _peek(self, index: int) -> DocumentSpan:
        while len(self._ahead) <= index:
            behind = [tokens / weight for tokens, weight in zip(self._tokens, self._weights, strict=True)]
            source = behind.index(min(behind))
            piece = self._sources[source].piece(self._drawn[source])
            self._ahead.append(piece)
            self._drawn[source] += 1
            self._tokens[source] += piece.size
        return self._ahead[index]

    def _seek(self, position: Position) -> None:
        position = self._start(position)
        if len(position.drawn) != len(self._sources):
            raise StorageError(f"the position is one in {len(position.drawn)} sources of data, not in these")
        self._ahead.clear()
        self._drawn, self._tokens = list(position.drawn), list(position.tokens)

    def _start(self, position: Position) -> Position:
        zeros = (0,) * len(self._sources)
        return position if position.drawn else Position(zeros, zeros)
