"""Groups of documents with a joint loss, such as the two answers of a preference pair; a group stays in one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.data.batching.sampler import DocumentSpan

Items = Sequence[Document | Tree]


def group_size(group: Tree) -> int:
    """Input tokens of the group's documents, each with its own copy of the prefix: the order of the data must not
    depend on prefix sharing."""
    return sum(len(group.prefix) + len(branch.tokens) - 1 for branch in group.branches)


class Groups:
    """Groups in memory; a group is a common prefix and its documents. With `share` the prefix is computed once for all
    of them."""

    def __init__(self, groups: Iterable[Tree], *, share: bool) -> None:
        kept = list(groups)
        self.lengths = np.asarray([group_size(group) + 1 for group in kept], np.int64)
        self._items: list[Items] = [[group] if share else group.apart() for group in kept]

    def read(self, pieces: Sequence[DocumentSpan]) -> list[Items]:
        return [self._items[piece.document] for piece in pieces]

    def valid(self, piece: DocumentSpan) -> int:
        """A group counts once in the loss."""
        return 1


def row_of_groups(groups: Sequence[Items]) -> PackedRow:
    items = [item for group in groups for item in group]
    room = sum(group_size(item) if isinstance(item, Tree) else len(item.tokens) - 1 for item in items)
    (row,) = pack(items, room)
    return row
