"""Half layers on rows of all ranks: all-gather before, reduce-scatter after."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import ProcessGroup

from rondo.parallel.collectives import gather_rows, gathered, scatter_rows
from rondo.parallel.tensor.local import become


def divide_rows(half: nn.Module, group: ProcessGroup, *, again: bool) -> None:
    """Makes the half layer take and return this rank's rows but compute on all rows, in place. With `again` the
    gathered rows are not saved for the backward pass but gathered once more.
    """
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
    """Hooks that replace the gathered rows among saved tensors by a placeholder. All uses in a backward pass share one
    gathering.
    """

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
