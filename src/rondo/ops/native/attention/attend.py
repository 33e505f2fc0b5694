"""Attention of many tokens at once by the chain of sums that decode and the compiled step have: `attend.c`."""

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
    """Whose past each token sees: `owners` [T] are rows of `tables` [R, P] of pages, of which the first `lengths` [T]
    rows count, with its own. `seen` is how many that is for all of them together."""

    tables: Tensor
    owners: Tensor
    lengths: Tensor
    seen: int


def can_attend(q: Tensor, *rows: Tensor) -> bool:
    """Whether queries can see rows of their own type."""
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
    """q [T, H, D] -> [T, H, Dv]. Into `lse` [T, H] goes the logarithm of what weights were divided by."""
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
