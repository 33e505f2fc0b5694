"""Assignment of a row's tokens to context-parallel ranks: pure arithmetic.

Each rank holds one contiguous stretch (`striped=False`), or every n-th token: rank r has tokens r, r + n, r + 2n, ...
The cost of a token's attention grows with the number of visible tokens, so stretches are unbalanced where each rank
attends for its own tokens. Stripes are balanced for all documents and windows, because each rank has every n-th token
of each document.
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
    """A row of `length` tokens, divided equally among `ranks`."""

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
        """The rank's tokens, in its local order."""
        if self.striped:
            return np.arange(rank, self.length, self.ranks)
        return np.arange(rank * self.each, (rank + 1) * self.each)

    def owners(self, tokens: Ints) -> Ints:
        """The rank of each token."""
        return tokens % self.ranks if self.striped else tokens // max(self.each, 1)

    def places(self, tokens: Ints) -> Ints:
        """Local index of each token on its rank."""
        return tokens // self.ranks if self.striped else tokens % max(self.each, 1)

    def deal(self, where: Ints) -> Deal:
        """Assigns predictions to ranks: `where` are the tokens that predict, and each rank computes the predictions of
        its own tokens.
        """
        owners = self.owners(where)
        order = np.argsort(owners, kind="stable")
        sizes = np.bincount(owners, minlength=self.ranks)
        return Deal(self, where, order, sizes.tolist())


@dataclass(frozen=True)
class Deal:
    """Assignment of predictions to ranks. `order` are their indices, rank by rank, and `sizes` the numbers per rank."""

    cut: RowCut
    where: Ints
    order: Ints
    sizes: Sequence[int]

    def own(self, rank: int) -> Ints:
        """Ascending indices of the rank's predictions."""
        first = sum(self.sizes[:rank])
        return self.order[first : first + self.sizes[rank]]

    def read(self, rank: int) -> Ints:
        """Local indices of the tokens that make the rank's predictions."""
        return self.cut.places(self.where[self.own(rank)])

    @property
    def back(self) -> Ints:
        """Index of each prediction in the concatenation of all ranks' predictions."""
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        return back
