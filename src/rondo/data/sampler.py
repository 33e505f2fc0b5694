"""The order of a data set: a function of the seed and the position, so a resumed job reads on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest


@dataclass(frozen=True)
class Position:
    """Everything a sampler has to remember."""

    epoch: int = 0
    index: int = 0
    """How many documents of this epoch's order are done."""
    offset: int = 0
    """How many tokens of the next document are done."""


@dataclass(frozen=True)
class Piece:
    """Tokens `begin` to `end` of a document."""

    document: int
    begin: int
    end: int


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of range(count). Philox's raw stream is the same in every NumPy version."""
    keys = np.random.Philox(key=[seed % 2**64, epoch]).random_raw(count)
    return np.argsort(keys, kind="stable")


def take_tokens(
    lengths: Sequence[int], seed: int, position: Position, budget: int, longest: int
) -> tuple[list[Piece], Position]:
    """The next pieces with exactly `budget` predicted tokens, documents cut where the budget or `longest` ends.

    A piece overlaps its successor by one token, so that every token but a document's first is predicted once an epoch.
    """
    pieces: list[Piece] = []
    epoch, index, offset = position.epoch, position.index, position.offset
    _check(lengths, 2)
    while budget > 0:
        if index == len(lengths):
            epoch, index, offset = epoch + 1, 0, 0
        document = int(order(len(lengths), seed, epoch)[index])
        left = lengths[document] - 1 - offset
        count = min(left, budget, longest)
        if count > 0:
            pieces.append(Piece(document, offset, offset + count + 1))
            budget -= count
        if count == max(left, 0):
            index, offset = index + 1, 0
        else:
            offset += count
    return pieces, Position(epoch, index, offset)


def take_whole(
    lengths: Sequence[int], seed: int, position: Position, budget: int
) -> tuple[list[int], Position]:
    """The next whole documents with at most `budget` tokens together, but at least one."""
    taken: list[int] = []
    epoch, index, used = position.epoch, position.index, 0
    _check(lengths, 1)
    while True:
        if index == len(lengths):
            epoch, index = epoch + 1, 0
        document = int(order(len(lengths), seed, epoch)[index])
        if taken and used + lengths[document] > budget:
            return taken, Position(epoch, index)
        taken.append(document)
        used += lengths[document]
        index += 1


def _check(lengths: Sequence[int], least: int) -> None:
    if not any(length >= least for length in lengths):
        raise InvalidRequest(
            "the data set is empty: no document has enough tokens to learn from", param="data"
        )
