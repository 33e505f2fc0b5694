"""Collectives on activations, each with its backward pass.

They are PyTorch's functional collectives, so that its debug modes record and count them. A group of one rank
communicates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives  # the operations are complete only once it is imported
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

functional: Any = torch.ops._c10d_functional


def gather_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather of x [T/n, ..] to [T, ..]. The ranks' later computations differ: a gradient is the sum over all
    ranks.
    """
    return _apply(_GatherRows, x, group)


def read_rows(x: Tensor, rows: Tensor, group: ProcessGroup) -> Tensor:
    """As `gather_rows`, restricted to the distinct `rows` [N]: [N, ..]."""
    return _apply(_ReadRows, x, group, rows)


def scatter_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """Reduce-scatter: x [T, ..] is a summand on each rank; the result is this rank's [T/n, ..] of the sum."""
    return _apply(_ScatterRows, x, group)


def gather_equal(x: Tensor, group: ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """As `gather_rows`, for ranks whose later computations are equal: the gradient is the slice of this rank's own
    part. `sizes` are the ranks' numbers of rows, if they differ.
    """
    return _apply(_GatherEqual, x, group, sizes)


def all_to_all(x: Tensor, group: ProcessGroup, out_splits: Sequence[int], in_splits: Sequence[int]) -> Tensor:
    """Sends the i-th part of x [sum(in_splits), ..] to rank i; the result [sum(out_splits), ..] is in the order of the
    senders.
    """
    return _apply(_AllToAll, x, group, list(out_splits), list(in_splits))


def sum_over(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-reduce: the sum over all ranks, for ranks whose later computations are equal."""
    return _apply(_SumOver, x, group)


def copy_to(x: Tensor, group: ProcessGroup) -> Tensor:
    """x, equal on all ranks, whose later computations differ: a gradient is the sum over all ranks."""
    return _apply(_CopyTo, x, group)


def start_passing(x: Tensor, group: ProcessGroup) -> Tensor:
    """Starts to send x to the next rank, and the last rank's to the first; `arrived` returns the previous rank's tensor
    of the same shape. It has no gradient.
    """
    size, rank = group.size(), group.rank()
    x = x.contiguous()
    out_splits, in_splits = [0] * size, [0] * size
    out_splits[rank - 1] = in_splits[(rank + 1) % size] = x.shape[0]
    passed: Tensor = functional.all_to_all_single(x, out_splits, in_splits, group.group_name)
    return passed


def arrived(x: Tensor) -> Tensor:
    """x, after the collective that produces it is complete."""
    done: Tensor = functional.wait_tensor(x)
    return done


def _apply(function: Any, x: Tensor, group: ProcessGroup, *others: Any) -> Tensor:
    if group.size() == 1:
        return x
    result: Tensor = function.apply(x, group, *others)
    return result


def gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """As `gather_rows`, without a gradient."""
    return arrived(functional.all_gather_into_tensor(x.contiguous(), group.size(), group.group_name))


def _scattered(x: Tensor, group: ProcessGroup) -> Tensor:
    size = group.size()
    if x.shape[0] % size:
        raise ValueError(f"{x.shape[0]} rows do not divide among {size} ranks")
    return arrived(functional.reduce_scatter_tensor(x.contiguous(), "sum", size, group.group_name))


def _summed(x: Tensor, group: ProcessGroup) -> Tensor:
    return arrived(functional.all_reduce(x.contiguous(), "sum", group.group_name))


def exchanged(x: Tensor, group: ProcessGroup, out_splits: list[int], in_splits: list[int]) -> Tensor:
    """As `all_to_all`, without a gradient."""
    return arrived(functional.all_to_all_single(x.contiguous(), out_splits, in_splits, group.group_name))


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scattered(grads[0], ctx.group), None


class _ReadRows(torch.autograd.Function):
    """Gather of selected rows. `rows` is not a saved tensor, because a recomputed layer would gather again to restore
    it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, rows: Tensor) -> Tensor:
        ctx.group, ctx.rows, ctx.count = group, rows, len(x) * group.size()
        return gathered(x, group)[rows]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        whole = grads[0].new_zeros(ctx.count, *grads[0].shape[1:])
        whole[ctx.rows] = grads[0]
        return _scattered(whole, ctx.group), None, None


class _ScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gathered(grads[0], ctx.group), None


class _GatherEqual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, sizes: Sequence[int] | None) -> Tensor:
        sizes = [x.shape[0]] * group.size() if sizes is None else sizes
        rank, most = group.rank(), max(sizes)
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        whole = gathered(_padded(x, most), group)
        if min(sizes) == most:
            return whole
        return torch.cat([whole[i * most : i * most + size] for i, size in enumerate(sizes)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0][ctx.own], None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: ProcessGroup, out_splits: list[int], in_splits: list[int]
    ) -> Tensor:
        ctx.group, ctx.out_splits, ctx.in_splits = group, out_splits, in_splits
        return exchanged(x, group, out_splits, in_splits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return exchanged(grads[0], ctx.group, ctx.in_splits, ctx.out_splits), None, None, None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _summed(grads[0], ctx.group), None


def _padded(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[0] == rows else pad(x, (*(0,) * (2 * x.ndim - 1), rows - x.shape[0]))
