"""Context parallelism: ranks hold parts of one row, and only attention sees the others' tokens."""

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
    """The ranks that share rows, as one of them sees it. Without a group it is alone, and rows are whole."""

    group: ProcessGroup | None = None
    method: Method = "ulysses"

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    def cut(self, length: int) -> RowCut:
        """A ring's ranks see for themselves, so they have stripes."""
        return RowCut(length, self.size, striped=self.method == "ring")

    def attend(self, whole: Attend, cut: RowCut) -> Attend:
        """Attention as `whole` has it, to a row that is cut."""
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
        """own [of this rank's predictions, ..] -> [of all, ..], in their order, on every rank. All ranks do the same
        with them, so a gradient is the own part's alone."""
        if self.group is None or self.size == 1:
            return own
        back = torch.from_numpy(deal.back).to(own.device)
        return take(gather_equal(own, self.group, deal.sizes), back)
