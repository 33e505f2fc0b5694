"""Half layers whose rows lie on all ranks: gathered before, and scattered as sums after."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup

from rondo.parallel.collectives import gather_rows, gathered, scatter_rows
from rondo.parallel.tensor.local import become


def divide_rows(half: nn.Module, group: ProcessGroup, *, again: bool) -> None:
    """In place: it takes and gives this rank's rows, and works on all of them. With `again` these are not kept for its
    backward pass, but gathered for it once more."""
    become(half, _DividesRows)
    half.__dict__["rows_group"], half.__dict__["rows_again"] = group, again


class _DividesRows(nn.Module):
    rows_group: ProcessGroup
    rows_again: bool

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        whole = gather_rows(x, self.rows_group)
        if self.rows_again:
            again = _Again(x.detach(), whole, self.rows_group)
            with saved_tensors_hooks(again.pack, again.unpack):
                out = super().forward(whole, *others)
        else:
            out = super().forward(whole, *others)
        return scatter_rows(out, self.rows_group)


class _Again:
    """In what a pass keeps, a place for the rows of all ranks. Each that asks for them has them from one gathering."""

    def __init__(self, own: Tensor, whole: Tensor, group: ProcessGroup) -> None:
        self._own, self._group = own, group
        self._storage, self._shape = whole.untyped_storage()._cdata, whole.shape
        self._kept = self._asked = 0
        self._whole: Tensor | None = None

    def pack(self, x: Tensor) -> Tensor | None:
        if x.untyped_storage()._cdata != self._storage or x.shape != self._shape:
            return x
        self._kept += 1
        return None

    def unpack(self, kept: Tensor | None) -> Tensor:
        if kept is not None:
            return kept
        whole = gathered(self._own, self._group) if self._whole is None else self._whole
        self._asked = (self._asked + 1) % self._kept
        self._whole = whole if self._asked else None
        return whole
