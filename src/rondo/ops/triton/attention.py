"""Triton's versions of `paged_decode` and `chunk_attention`, registered with the operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rondo.ops.attention.chunks import Chunks, chunk_attention
from rondo.ops.attention.packed import AttentionSpec
from rondo.ops.attention.paged import DecodeStep, paged_decode
from rondo.ops.attention.pages import Pages
from rondo.ops.triton.at_hand import FLOATS, launch, power_of_two, takes, warps

SLICE = 256
"""Keys of a past in one partial sum, so that a long request is divided over the GPU."""
WIDEST = 256
"""Maximum head dimension."""
KEPT = {**dict.fromkeys(FLOATS, "plain"), torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def _can(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: DecodeStep | Chunks,
    sinks: Tensor | None = None,
) -> bool:
    return (
        max(spec.head_dim, spec.value_dim) <= WIDEST
        and keys.dtype == values.dtype
        and keys.dtype in KEPT
        and takes(q, k, v)
        and keys.data.device == q.device
        and not (torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v)))
    )


def _tile(spec: AttentionSpec, keys: Pages, q: Tensor) -> dict[str, Any]:
    """Tile sizes, which depend on the layer only. Decode uses as many rows as prefill, because on some GPUs the number
    of rows selects the matrix instruction. fp32 does not use those instructions, so it has fewer rows."""
    widest = max(spec.head_dim, spec.value_dim)
    return {
        "ROWS": 16 if q.dtype == torch.float32 else 64,
        "KEYS": 64 if widest <= 128 and q.dtype != torch.float32 else 32,
        "DIM": max(16, power_of_two(spec.head_dim)),
        "VALUE_DIM": max(16, power_of_two(spec.value_dim)),
        "KEPT": KEPT[keys.dtype],
        "WINDOW": spec.window is not None,
        "SOFTCAP": spec.softcap is not None,
        "SLICE": SLICE,
    }


def _memory(pages: Pages) -> tuple[Tensor, Tensor]:
    """Data and scales of the pages; the data stands in for missing scales."""
    return pages.data, pages.data if pages.scales is None else pages.scales


def _sizes(spec: AttentionSpec) -> tuple[int | float, ...]:
    return spec.head_dim, spec.value_dim, spec.window or 0, spec.scale, spec.softcap or 1.0


def _floats(sinks: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if sinks is None else sinks.float().contiguous()


def write(keys: Pages, values: Pages, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Writes k [T, KV, D] and v [T, KV, Dv] to slots [T]; a slot below 0 is skipped."""
    from rondo.ops.triton.kernels.pages import write_tokens

    k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
    tokens, heads, dim = k.shape
    wide, value_wide = power_of_two(dim), power_of_two(v.shape[-1])
    tall = power_of_two(heads)
    launch(
        write_tokens,
        (tokens,),
        k,
        *(k, v, *_memory(keys), *_memory(values), slots),
        *(k.stride(0), k.stride(1), v.stride(0), v.stride(1), heads, dim, v.shape[-1]),
        KEPT=KEPT[keys.dtype],
        HEADS=tall,
        DIM=wide,
        VALUE_DIM=value_wide,
        num_warps=warps(tall * wide),
    )


@paged_decode.fast(_can)
def paged_decode_triton(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: DecodeStep,
    sinks: Tensor | None = None,
) -> Tensor:
    from rondo.ops.triton.kernels.attention import decode_slices, join_slices

    write(keys, values, step.slots, k, v)
    batch, heads = q.shape[:2]
    kv, size = spec.num_kv_heads, keys.data.shape[1]
    group, slices = heads // kv, -(-step.longest // SLICE)
    tile = _tile(spec, keys, q)
    blocks = -(-group // tile["ROWS"])
    out = q.new_empty(batch, heads, spec.value_dim)
    tops, masses = (q.new_empty(batch, heads, slices, dtype=torch.float32) for _ in range(2))
    parts = q.new_empty(batch, heads, slices, spec.value_dim, dtype=torch.float32)
    tables, lengths = step.tables.contiguous(), step.lengths
    launch(
        decode_slices,
        (batch * blocks, kv, slices),
        q,
        *(q.contiguous(), tops, masses, parts, *_memory(keys), *_memory(values), tables, lengths),
        *(tables.shape[1], size, kv, group, blocks, *_sizes(spec), slices),
        **tile,
        num_warps=4,
    )
    launch(
        join_slices,
        (batch, heads),
        q,
        *(
            tops,
            masses,
            parts,
            _floats(sinks, tops),
            lengths,
            out,
            heads,
            spec.value_dim,
            spec.window or 0,
            slices,
        ),
        SINKS=sinks is not None,
        **{name: tile[name] for name in ("SLICE", "KEYS", "VALUE_DIM", "WINDOW")},
        num_warps=1,
    )
    return out


@chunk_attention.fast(_can)
def chunk_attention_triton(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: Chunks,
    sinks: Tensor | None = None,
) -> Tensor:
    from rondo.ops.triton.kernels.attention import attend_blocks

    write(keys, values, step.slots, k, v)
    heads = q.shape[1]
    kv, size = spec.num_kv_heads, keys.data.shape[1]
    group, tile = heads // kv, _tile(spec, keys, q)
    out = q.new_empty(q.shape[0], heads, spec.value_dim)
    tables = step.tables.contiguous()
    places = step.places(group, tile["ROWS"])
    launch(
        attend_blocks,
        (len(places[-1]), kv),
        q,
        *(q.contiguous(), out, _floats(sinks, out), *_memory(keys), *_memory(values), tables, *places),
        *(tables.shape[1], size, kv, group, *_sizes(spec)),
        SINKS=sinks is not None,
        **tile,
        num_warps=4,
    )
    return out
