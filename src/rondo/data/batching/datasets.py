"""Tokenized documents by number: in memory here, in prepared shards in `storage/shards.py`, in indivisible groups in
`groups.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rondo.data.batching.packing import Document
from rondo.data.batching.sampler import DocumentSpan

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Learned = tuple[NDArray[Any], Floats]
"""The tokens of a span, and the loss weight of each."""


class Dataset(Protocol):
    @property
    def lengths(self) -> NDArray[Any]:
        """Length of every document in tokens."""

    def read(self, pieces: Sequence[DocumentSpan]) -> list[Any]:
        """Reads the items that the loader makes rows of: `Learned`, unless the loader has another `make_row`."""

    def valid(self, piece: DocumentSpan) -> int:
        """The number of loss terms in a span (predictions, or another unit of the loss), computed without reading
        it."""


class InMemory:
    """Documents concatenated in one array."""

    def __init__(self, documents: Iterable[Document]) -> None:
        kept = list(documents)
        self.lengths = np.asarray([len(document.tokens) for document in kept], np.int64)
        self._starts = np.cumsum([0, *self.lengths])
        self._tokens = _joined((document.tokens for document in kept), np.int32)
        self._weights = _joined((document.weights for document in kept), np.float32)
        self._valid = np.concatenate([[0], np.cumsum(self._weights != 0)])

    def read(self, pieces: Sequence[DocumentSpan]) -> list[Learned]:
        return [(self._tokens[at], self._weights[at]) for at in map(self._slice, pieces)]

    def valid(self, piece: DocumentSpan) -> int:
        at = self._slice(piece)
        return int(self._valid[at.stop] - self._valid[at.start + 1])

    def _slice(self, piece: DocumentSpan) -> slice:
        start = int(self._starts[piece.document])
        return slice(start + piece.begin, start + piece.end)


def _joined(parts: Iterable[Sequence[float]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(np.asarray(part, dtype) for part in parts)])
