"""Context parallelism: ranks hold parts of one row, and only attention uses tokens of other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rondo.base.errors import ConfigError
from rondo.models.attend import Attend, Packed
from rondo.models.parts import take
from rondo.parallel.collectives import gather_equal
from rondo.parallel.context.ring import Ring
from rondo.parallel.context.row_cut import Deal, RowCut
from rondo.parallel.context.ulysses import Ulysses

Method = Literal["ulysses", "ring"]


@dataclass(frozen=True)
class Context:
    """The ranks that share rows, from the view of one rank. Without a group, rows are whole."""

    group: ProcessGroup | None = None
    method: Method = "ulysses"

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    def cut(self, length: int) -> RowCut:
        """Partition of a row of this length. Ring attention computes on local queries, so its ranks hold balanced
        stripes.
        """
        return RowCut(length, self.size, striped=self.method == "ring")

    def attend(self, whole: Attend, cut: RowCut) -> Attend:
        """Attention as in `whole`, for a partitioned row."""
        if self.group is None or self.size == 1:
            return whole
        if self.method == "ulysses":
            return Ulysses(self.group, whole, cut)
        if not isinstance(whole, Packed):
            raise ConfigError(
                'train.layout.cp_method: "ring" does not support shared prefixes (several answers to one prompt in '
                'a row): choose "ulysses", or share_prefix=false where a recipe has it',
                param="train.layout.cp_method",
            )
        return Ring(self.group, whole, cut)

    def gather(self, own: Tensor, deal: Deal) -> Tensor:
        """All-gather of own [predictions of this rank, ..] to [predictions of all ranks, ..], in their order, on every
        rank. The later computations of all ranks are equal, so the gradient is the slice of this rank's own part.
        """
        if self.group is None or self.size == 1:
            return own
        back = torch.from_numpy(deal.back).to(own.device)
        return take(gather_equal(own, self.group, deal.sizes), back)
