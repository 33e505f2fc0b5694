"""Interaction of two ranks' stripes of a row: which tokens of one attend to which tokens of the other. Pure arithmetic.

In each document it is ordinary causal attention, once tokens without any interaction are left out: queries before all
keys, and keys after all queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rondo.parallel.context.row_cut import Ints, RowCut


@dataclass(frozen=True)
class Meeting:
    """Attention of a rank's tokens to a source rank's tokens. `queries` and `keys` are the tokens that take part:
    equally many in each document, and the n-th query attends to its first n keys, or the last of these within a window.
    `apart` is the distance by which the rank follows the source.
    """

    queries: Ints
    keys: Ints
    cu_seqlens: tuple[int, ...]
    ranks: int
    apart: int

    @classmethod
    def of(cls, cut: RowCut, cu_seqlens: Sequence[int], rank: int, source: int) -> Meeting:
        assert cut.striped
        edges, ranks = np.asarray(cu_seqlens), cut.ranks
        query_edges, key_edges = _held(edges, rank, ranks), _held(edges, source, ranks)
        last_query = rank + (query_edges[1:] - 1) * ranks
        seen = _held(last_query + 1, source, ranks) - key_edges[:-1]
        counts = np.clip(seen, 0, np.diff(query_edges))
        starts = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        queries = np.repeat(query_edges[1:] - counts, counts) + within
        keys = np.repeat(key_edges[:-1], counts) + within
        return cls(queries, keys, tuple(dict.fromkeys(starts.tolist())), ranks, rank - source)

    def window(self, window: int | None) -> int | None:
        """Number of the source's keys in a window of the row that ends with a query: up to the key of the query's own
        round, or of the previous round if the source is later in a round. It is the same for all queries.
        """
        if window is None:
            return None
        return -((self.apart - window) // self.ranks) - (self.apart < 0)


def _held(edges: Ints, rank: int, ranks: int) -> Ints:
    """Number of the rank's tokens before each of these positions."""
    return -(-(edges - rank) // ranks).clip(max=0)
