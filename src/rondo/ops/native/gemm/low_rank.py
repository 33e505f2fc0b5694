"""The compiled version of `add_low_rank`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.gemm.low_rank import RANK_MULTIPLE, Pairs, RowGroups, add_low_rank, read_by_address
from rondo.ops.native.build.build import library

WORK_FOR_THREADS = 1 << 16
"""Weights below which waking another thread costs more than it saves."""


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "x", "rows", "bounds", "table")),
        *((name, ctypes.c_int64) for name in ("groups", "in", "width", "threads")),
    )


@add_low_rank.fast(read_by_address)
def add_low_rank_native(out: Tensor, x: Tensor, pairs: Pairs, groups: RowGroups) -> None:
    compiled = library("low_rank")
    assert compiled is not None
    assert pairs.table is not None
    x = x.contiguous()
    width, inputs, count = out.shape[1], x.shape[1], len(pairs.members)
    work = groups.rows.shape[0] * RANK_MULTIPLE * (inputs + width)
    arguments = _Args(
        out.data_ptr(),
        x.data_ptr(),
        groups.rows.data_ptr(),
        groups.bounds.data_ptr(),
        pairs.table.data_ptr(),
        count,
        inputs,
        width,
        torch.get_num_threads() if work > WORK_FOR_THREADS else 1,
    )
    compiled.low_rank_f32(ctypes.byref(arguments))
