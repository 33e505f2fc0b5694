"""Documents that are learned from together, such as the two answers of a pair: they stay in one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.data.batching.sampler import DocumentSpan

Items = Sequence[Document | Tree]


def group_size(group: Tree) -> int:
    """How many tokens its documents put in, each with the prefix of its own: the order of the data must not depend on
    whether prefixes are shared."""
    return sum(len(group.prefix) + len(branch.tokens) - 1 for branch in group.branches)


class Groups:
    """In memory; a group is what its documents have in common, and they. With `share` that prefix is computed once for
    all of them."""

    def __init__(self, groups: Iterable[Tree], *, share: bool) -> None:
        kept = list(groups)
        self.lengths = np.asarray([group_size(group) + 1 for group in kept], np.int64)
        self._items: list[Items] = [[group] if share else group.apart() for group in kept]

    def read(self, pieces: Sequence[DocumentSpan]) -> list[Items]:
        return [self._items[piece.document] for piece in pieces]

    def valid(self, piece: DocumentSpan) -> int:
        """A group counts once."""
        return 1


def row_of_groups(groups: Sequence[Items]) -> PackedRow:
    items = [item for group in groups for item in group]
    room = sum(group_size(item) if isinstance(item, Tree) else len(item.tokens) - 1 for item in items)
    (row,) = pack(items, room)
    return row
