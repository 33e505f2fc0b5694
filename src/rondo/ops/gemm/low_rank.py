"""Adding low-rank products to rows of a linear module's output, with a pair of matrices for each group of rows.

A step of mixed requests has many groups of one or two rows. Its cost is dominated by reading the weights and starting
kernels, so weights are read once and kernels are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from rondo.ops.dispatch import Op
from rondo.ops.gemm.linear import linear
from rondo.ops.native.build.build import library

RANK_MULTIPLE = 4

Pair = tuple[Tensor, Tensor]
"""a [r, K] and b [r, N]: x aᵀ b is added for a row x."""


class Pairs:
    """The pairs of several groups at one module; None for a group without an addition there.

    `table` [G, 3], for the kernel that reads by address, has the addresses of a and b and their number of rows, a
    multiple of `RANK_MULTIPLE`. It is None unless the weights are fp32 on the CPU.
    """

    def __init__(self, members: Sequence[Pair | None], table: Tensor | None = None) -> None:
        self.members = members
        self.table = table

    @cached_property
    def stacked(self) -> Pair:
        """a [G, r, K] and b [G, r, N], padded with zeros for groups of lower rank."""
        given = [member for member in self.members if member is not None]
        rank = max(a.shape[0] for a, _ in given)
        stacks = [x.new_zeros(len(self.members), rank, x.shape[1]) for x in given[0]]
        for i, member in enumerate(self.members):
            for stack, x in zip(stacks, member or (), strict=False):
                stack[i, : x.shape[0]] = x
        return stacks[0], stacks[1]


@dataclass(frozen=True)
class RowGroups:
    """Row indices [R], group after group; group g has `rows[bounds[g]:bounds[g + 1]]`. `bounds` is on the CPU."""

    rows: Tensor
    bounds: Tensor

    @cached_property
    def each(self) -> list[Tensor]:
        starts = self.bounds.tolist()
        return [self.rows[start:stop] for start, stop in pairwise(starts)]

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor]:
        """Row indices [G, M], padded by repeating each group's last, and the flat positions of the R real ones."""
        counts = self.bounds.diff()[:, None]
        column = torch.arange(int(counts.max()))[None, :]
        at = self.bounds[:-1, None] + torch.minimum(column, counts - 1)
        real = (column < counts).flatten().nonzero().flatten()
        device = self.rows.device
        return self.rows[at.to(device)], real.to(device)


@Op
def add_low_rank(out: Tensor, x: Tensor, pairs: Pairs, groups: RowGroups) -> None:
    """out[row] += x[row] aᵀ b with each group's pair, in place; all other rows are bitwise unchanged."""
    for member, rows in zip(pairs.members, groups.each, strict=True):
        if member is not None:
            add_low_rank_to(out, x, member, rows)


def add_low_rank_to(out: Tensor, x: Tensor, pair: Pair, rows: Tensor | slice) -> None:
    """The same operation for a single group with many rows."""
    a, b = pair
    products = linear(x[rows].to(a.dtype), a)
    if isinstance(rows, slice) and out.dtype == b.dtype:
        out[rows].addmm_(products, b)
    else:
        out[rows] = (out[rows] + products @ b).to(out.dtype)


def read_by_address(out: Tensor, x: Tensor, pairs: Pairs, groups: RowGroups) -> bool:
    return (
        pairs.table is not None
        and out.dtype == x.dtype == torch.float32
        and out.is_contiguous()
        and library("low_rank") is not None
    )


def _several(out: Tensor, x: Tensor, pairs: Pairs, groups: RowGroups) -> bool:
    return len(pairs.members) > 1 and not read_by_address(out, x, pairs, groups)


@add_low_rank.fast(_several)
def _stacked(out: Tensor, x: Tensor, pairs: Pairs, groups: RowGroups) -> None:
    """All groups in two batched products, padded to the longest."""
    a, b = pairs.stacked
    own, real = groups.padded
    products = (x[own].to(a.dtype) @ a.mT) @ b
    added = products.flatten(0, 1).index_select(0, real)
    rows = groups.rows
    out.index_copy_(0, rows, (out.index_select(0, rows) + added).to(out.dtype))
