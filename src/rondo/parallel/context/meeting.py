"""Two ranks' stripes of a row: which tokens of the one see which of the other. Pure arithmetic.

In each document it is ordinary causal attention, once the tokens that have no part in it are
left out: a query is left out that comes before all keys, and a key that comes after all queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rondo.parallel.context.row_cut import Ints, RowCut


@dataclass(frozen=True)
class Meeting:
    """What a rank's tokens see of a source's. `queries` and `keys` are those that take part: equally many in each
    document, and the n-th query of one sees its first n keys, or the last of those in a window. `apart` is how far the
    rank is behind the source."""

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
        """How many keys of the source are in a window of the row that ends with a query: up to that of the query's own
        round, or of the round before where the source comes later in it. The same for all queries."""
        if window is None:
            return None
        return -((self.apart - window) // self.ranks) - (self.apart < 0)


def _held(edges: Ints, rank: int, ranks: int) -> Ints:
    """How many of its tokens a rank has before each of these."""
    return -(-(edges - rank) // ranks).clip(max=0)
