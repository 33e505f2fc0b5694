"""The compiled version of `paged_decode`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.attention import AttentionSpec
from rondo.ops.native.build import library
from rondo.ops.paged_attention import DecodeStep, paged_decode
from rondo.ops.pages import Pages

_PAGES = ("keys", "values", "key_scales", "value_scales")
_POINTERS = (*_PAGES, "q", "k", "v", "out", "tables", "owners", "lengths", "slots", "sinks")
_NUMBERS = ("kept", "given", "batch", "heads", "kv", "dim", "value_dim", "size", "pages", "window", "threads")
GIVEN = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
KEPT = GIVEN | {torch.int8: 3, torch.float8_e4m3fn: 4}
WORK_FOR_THREADS = 1 << 16
"""Multiplications below which waking another thread costs more than it saves."""


class _Args(ctypes.Structure):
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
        q.device.type == "cpu"
        and q.dtype in GIVEN
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
    if sinks is not None:
        sinks = sinks.float().contiguous()
    work = batch * spec.num_heads * step.longest * (spec.head_dim + spec.value_dim)
    arguments = _Args(
        keys.data.data_ptr(),
        values.data.data_ptr(),
        _address(keys.scales),
        _address(values.scales),
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        step.tables.data_ptr(),
        None,
        step.lengths.data_ptr(),
        step.slots.data_ptr(),
        _address(sinks),
        KEPT[keys.dtype],
        GIVEN[q.dtype],
        batch,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.value_dim,
        keys.data.shape[1],
        step.tables.shape[1],
        spec.window or 0,
        torch.get_num_threads() if work > WORK_FOR_THREADS else 1,
        spec.scale,
        spec.softcap or 0.0,
    )
    if compiled.paged_decode(ctypes.byref(arguments)):
        raise MemoryError("no memory for the scratch of attention")
    return out


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
