"""Which tokens of a row each context-parallel rank holds: pure arithmetic.

In one stretch each (`striped=False`), or dealt out like cards: rank r has tokens r, r + n, r + 2n, ... Attention of a
token costs what it sees, so stretches are unequal work where ranks see for themselves; stripes are equal, whatever the
documents and the windows are, because each rank has every n-th token of each document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import ConfigError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RowCut:
    """A row of `length` tokens among `ranks`, equally many each."""

    length: int
    ranks: int
    striped: bool = False

    def __post_init__(self) -> None:
        if self.length % self.ranks:
            raise ConfigError(
                f"train.layout.cp: {self.ranks} ranks cannot have equally many of a row's {self.length} tokens; "
                f"pad it to a multiple of {self.ranks}",
                param="train.layout.cp",
            )

    @property
    def each(self) -> int:
        return self.length // self.ranks

    def tokens(self, rank: int) -> Ints:
        """The rank's tokens, in its order."""
        if self.striped:
            return np.arange(rank, self.length, self.ranks)
        return np.arange(rank * self.each, (rank + 1) * self.each)

    def owners(self, tokens: Ints) -> Ints:
        """The rank of each token."""
        return tokens % self.ranks if self.striped else tokens // max(self.each, 1)

    def places(self, tokens: Ints) -> Ints:
        """Where each token is among its rank's own."""
        return tokens // self.ranks if self.striped else tokens % max(self.each, 1)

    def deal(self, where: Ints) -> Deal:
        """`where` are the tokens from which something is predicted, each rank's own left to it."""
        owners = self.owners(where)
        order = np.argsort(owners, kind="stable")
        sizes = np.bincount(owners, minlength=self.ranks)
        return Deal(self, where, order, sizes.tolist())


@dataclass(frozen=True)
class Deal:
    """Predictions among ranks. `order` are their numbers rank by rank, `sizes` how many each rank has."""

    cut: RowCut
    where: Ints
    order: Ints
    sizes: Sequence[int]

    def own(self, rank: int) -> Ints:
        """Numbers of the rank's predictions, ascending."""
        first = sum(self.sizes[:rank])
        return self.order[first : first + self.sizes[rank]]

    def read(self, rank: int) -> Ints:
        """The tokens they are made from, among the rank's own."""
        return self.cut.places(self.where[self.own(rank)])

    @property
    def back(self) -> Ints:
        """For each prediction where it is when the ranks' are put one after another."""
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        return back
