"""Attention of many tokens with the same order of summation as decode and the compiled step: `attend.c`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.pages import Pages
from rondo.ops.native.attention.paged_decode import WORK_FOR_THREADS, attention_arguments
from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN
from rondo.ops.native.build.readable import address, readable


@dataclass(frozen=True)
class Pasts:
    """The past of each token: `owners` [T] are rows of the page tables `tables` [R, P], and the first `lengths` [T]
    positions there are attended to, including the token itself. `seen` is the sum of the lengths."""

    tables: Tensor
    owners: Tensor
    lengths: Tensor
    seen: int


def can_attend(q: Tensor, *rows: Tensor) -> bool:
    """Whether the kernel supports queries and rows of these dtypes."""
    return q.dtype in GIVEN and readable(q, *rows) and library("attend") is not None


def attend(
    spec: AttentionSpec,
    q: Tensor,
    keys: Pages,
    values: Pages,
    pasts: Pasts,
    sinks: Tensor | None,
    lse: Tensor | None = None,
) -> Tensor:
    """q [T, H, D] -> [T, H, Dv]. Writes the log-sum-exps to `lse` [T, H]."""
    compiled = library("attend")
    assert compiled is not None
    q = q.contiguous()
    sinks = None if sinks is None else sinks.detach().float().contiguous()
    out = torch.empty(q.shape[0], spec.num_heads, spec.value_dim, dtype=q.dtype, device="cpu")
    arguments = attention_arguments(spec, keys, values, q, out, sinks)
    arguments.tables, arguments.pages = pasts.tables.data_ptr(), pasts.tables.shape[1]
    arguments.owners, arguments.lengths = pasts.owners.data_ptr(), pasts.lengths.data_ptr()
    arguments.lse = address(lse)
    work = pasts.seen * spec.num_heads * (spec.head_dim + spec.value_dim)
    arguments.threads = torch.get_num_threads() if work > WORK_FOR_THREADS else 1
    if compiled.attend(ctypes.byref(arguments)):
        raise MemoryError("no memory for the scratch of attention")
    return out
