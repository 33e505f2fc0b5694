"""A packed row as samples of equal length, which is the input format of Megatron-Core's own attention. Pure arithmetic.

Documents are packed: a sample is as long as the longest tree of the row, and holds as many trees as fit. Tokens retain
their positions, and a mask restricts attention, so nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondo.data.batching.packing import Ints, PackedRow, plan_rows


@dataclass(frozen=True)
class Samples:
    """`tokens` and `positions` are [B, S]; `seen` [B, S, S] is the mask of visible keys of each query; the row's token
    i is at `places[i]` of the flattened [B, S]. Padding tokens attend to themselves only, and no other token attends to
    them.
    """

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
    """Places each segment behind the earlier ones of its tree, and packs trees into samples like documents into
    rows.
    """
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
    """Attention mask. A segment attends to those keys of its parent and further ancestors that precede its own first
    position.
    """
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
