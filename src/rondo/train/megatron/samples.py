"""A packed row as samples of one length, which is the form that Megatron-Core's own attention takes. Pure arithmetic.

Documents stay next to each other: a sample has room for the longest tree of the row, and holds as many as fit. Each
token keeps its position, and a mask says what it sees, so nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondo.data.batching.packing import Ints, PackedRow, plan_rows


@dataclass(frozen=True)
class Samples:
    """`tokens` and `positions` are [B, S]; `seen` [B, S, S] says which keys a query sees; the row's token i is at
    `places[i]` of the flattened [B, S]. Tokens that fill a sample up see themselves alone, and nobody sees them."""

    tokens: Ints
    positions: Ints
    seen: NDArray[np.bool_]
    places: Ints


def samples_of(row: PackedRow) -> Samples:
    places, shape = _places(row)
    return Samples(
        _spread(row.tokens, places, shape),
        _spread(row.positions, places, shape),
        _seen(row, places, shape),
        places,
    )


def _places(row: PackedRow) -> tuple[Ints, tuple[int, int]]:
    """A segment is put behind those of its tree that come before it, and trees into samples as documents into rows."""
    lengths = np.diff(row.cu_seqlens).tolist()
    tree_of, sizes, behind = list[int](), list[int](), list[int]()
    for parent, length in zip(row.parents, lengths):
        if parent < 0:
            tree_of.append(len(sizes))
            sizes.append(0)
        else:
            tree_of.append(tree_of[parent])
        behind.append(sizes[tree_of[-1]])
        sizes[tree_of[-1]] += length
    size = max(sizes)
    plan = plan_rows(sizes, size)
    begin = dict[int, int]()
    for sample, trees in enumerate(plan):
        place = sample * size
        for tree in trees:
            begin[tree] = place
            place += sizes[tree]
    starts = [begin[tree] + before for tree, before in zip(tree_of, behind)]
    shifts = np.array(starts) - np.array(row.cu_seqlens[:-1])
    return np.arange(len(row.tokens)) + np.repeat(shifts, lengths), (len(plan), size)


def _spread(values: Ints, places: Ints, shape: tuple[int, int]) -> Ints:
    found = np.zeros(shape, np.int64)
    found.reshape(-1)[places] = values
    return found


def _seen(row: PackedRow, places: Ints, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """A segment sees of its parent, and of whatever that continues, what comes before its own first position."""
    samples, size = shape
    seen = np.broadcast_to(np.eye(size, dtype=bool), (samples, size, size)).copy()
    starts, lengths = row.cu_seqlens[:-1], np.diff(row.cu_seqlens).tolist()
    for segment, (start, length) in enumerate(zip(starts, lengths)):
        if not length:
            continue
        sample, place = divmod(int(places[start]), size)
        queries = slice(place, place + length)
        seen[sample, queries, queries] = np.tri(length) > 0
        first, parent = int(row.positions[start]), row.parents[segment]
        while parent >= 0:
            begin, key = int(row.positions[starts[parent]]), int(places[starts[parent]]) % size
            count = max(0, min(lengths[parent], first - begin))
            seen[sample, queries, key : key + count] = True
            first, parent = min(first, begin), row.parents[parent]
    return seen
