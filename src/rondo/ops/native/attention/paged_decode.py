"""The compiled version of `paged_decode`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.paged import DecodeStep, paged_decode
from rondo.ops.attention.pages import Pages
from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN, KEPT
from rondo.ops.native.build.readable import address, readable

_PAGES = ("keys", "values", "key_scales", "value_scales")
_POINTERS = (*_PAGES, "q", "k", "v", "out", "tables", "owners", "lengths", "slots", "sinks", "lse")
_NUMBERS = (
    "kept",
    "given",
    "asked",
    "batch",
    "heads",
    "kv",
    "dim",
    "value_dim",
    "size",
    "pages",
    "window",
    "threads",
)
WORK_FOR_THREADS = 1 << 16
"""Multiplications below which waking another thread costs more than it saves."""


class AttentionArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


def _can(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: DecodeStep,
    sinks: Tensor | None = None,
) -> bool:
    return (
        q.dtype in GIVEN
        and readable(q, k, v)
        and keys.dtype in KEPT
        and keys.dtype == values.dtype
        and library("paged_decode") is not None
    )


@paged_decode.fast(_can)
def paged_decode_native(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: DecodeStep,
    sinks: Tensor | None = None,
) -> Tensor:
    compiled = library("paged_decode")
    assert compiled is not None
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch = q.shape[0]
    out = torch.empty(batch, spec.num_heads, spec.value_dim, dtype=q.dtype)
    sinks = None if sinks is None else sinks.float().contiguous()
    work = batch * spec.num_heads * step.longest * (spec.head_dim + spec.value_dim)
    arguments = attention_arguments(spec, keys, values, q, out, sinks)
    arguments.k, arguments.v, arguments.slots = k.data_ptr(), v.data_ptr(), step.slots.data_ptr()
    arguments.tables, arguments.pages = step.tables.data_ptr(), step.tables.shape[1]
    arguments.lengths = step.lengths.data_ptr()
    arguments.threads = torch.get_num_threads() if work > WORK_FOR_THREADS else 1
    if compiled.paged_decode(ctypes.byref(arguments)):
        raise MemoryError("no memory for the scratch of attention")
    return out


def attention_arguments(
    spec: AttentionSpec, keys: Pages, values: Pages, q: Tensor, out: Tensor, sinks: Tensor | None
) -> AttentionArguments:
    """The arguments other than page tables and owners. `q` and the fp32 `sinks` must outlive the call."""
    return AttentionArguments(
        keys=keys.data.data_ptr(),
        values=values.data.data_ptr(),
        key_scales=address(keys.scales),
        value_scales=address(values.scales),
        q=q.data_ptr(),
        out=out.data_ptr(),
        sinks=address(sinks),
        kept=KEPT[keys.dtype],
        given=GIVEN[q.dtype],
        asked=GIVEN[q.dtype],
        batch=q.shape[0],
        heads=spec.num_heads,
        kv=spec.num_kv_heads,
        dim=spec.head_dim,
        value_dim=spec.value_dim,
        size=keys.data.shape[1],
        window=spec.window or 0,
        scale=spec.scale,
        softcap=spec.softcap or 0.0,
    )
