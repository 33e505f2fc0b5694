"""Attention over pages, for one new token a request or for many.

Both divide a request's past into slices of `SLICE` keys. Each slice is summed separately, tile by tile, and slices are
merged in order. The start of a slice depends on the position only, and a tile outside a query's mask does not change
its bits. So a token has the same sums in decode and prefill; decode only computes the slices in parallel. Queries that
share a key head are rows of a tile of `ROWS`: a token's heads, then the next token's.
"""

import triton
import triton.language as tl

from rondo.ops.triton.at_hand import interpreted
from rondo.ops.triton.kernels.pages import load_rows
from rondo.ops.triton.kernels.pointwise import tanh

INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def product(a, b, c):
    """a [M, K] x b [K, N] + c. The interpreter's `tl.dot` does not support bf16, and its sums depend on a row's
    position."""
    if INTERPRETED:
        made = c + tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], 1)
    else:
        made = tl.dot(a, b, c, input_precision="ieee")
    return made


@triton.jit
def attend_slice(
    q,
    position,
    begin,
    end,
    table,
    kv,
    key_data,
    key_scales,
    value_data,
    value_scales,
    size: tl.constexpr,
    heads,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    window,
    scale,
    softcap,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEPT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """q [ROWS, DIM] at `position` [ROWS] over keys from `begin` (a tile's first) to `end` -> the largest score, the sum
    of weights relative to it, and the weighted sum of values. A row without visible keys has -inf and zeros."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    made = tl.zeros((ROWS, VALUE_DIM), tl.float32)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        seen = key < end
        page = tl.load(table + key // size, mask=seen, other=0)
        row = (page * size + key % size) * heads + kv
        k = load_rows(key_data, key_scales, row, seen, dim, KEPT, DIM, q.dtype)
        scores = product(q, tl.trans(k), tl.zeros((ROWS, KEYS), tl.float32)) * scale
        if SOFTCAP:
            scores = softcap * tanh(scores / softcap)
        visible = seen[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            visible = visible & (key[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        keep = tl.exp(top - base)
        mass = tl.fma(mass, keep, tl.sum(weights, 1))
        v = load_rows(value_data, value_scales, row, seen, value_dim, KEPT, VALUE_DIM, q.dtype)
        made = product(weights.to(q.dtype), v, made * keep[:, None])
        top = higher
    return top, mass, made


@triton.jit
def join(top, mass, made, next_top, next_mass, next_made):
    """Merges two consecutive stretches of a past."""
    higher = tl.maximum(top, next_top)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    keep = tl.exp(top - base)
    take = tl.exp(next_top - base)
    mass = tl.fma(mass, keep, next_mass * take)
    made = tl.fma(made, tl.broadcast_to(keep[:, None], made.shape), next_made * take[:, None])
    return higher, mass, made


@triton.jit
def finish(top, mass, made, sink, SINKS: tl.constexpr):
    """The weighted mean; zeros for a row without visible keys."""
    if SINKS:
        higher = tl.maximum(top, sink)
        keep = tl.exp(top - higher)
        mass = tl.fma(mass, keep, tl.exp(sink - higher))
        made = made * keep[:, None]
    return made / tl.where(mass == 0.0, 1.0, mass)[:, None]


@triton.jit
def decode_slices(
    q,
    tops,
    masses,
    parts,
    key_data,
    key_scales,
    value_data,
    value_scales,
    tables,
    lengths,
    pages,
    size: tl.constexpr,
    heads,
    group: tl.constexpr,
    blocks: tl.constexpr,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    window,
    scale,
    softcap,
    slices,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEPT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """One slice of a request's past, for `ROWS` of the queries that share a key head."""
    request = (tl.program_id(0) // blocks).to(tl.int64)
    kv = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(lengths + request).to(tl.int32)
    begin = part * SLICE
    end = tl.minimum(begin + SLICE, length)
    if WINDOW:
        begin = tl.maximum(begin, tl.maximum(length - window, 0) // KEYS * KEYS)
    if begin < end:
        member = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
        mine = member < group
        head = (request * heads + kv) * group + member
        at = tl.arange(0, DIM)
        inside = mine[:, None] & (at[None, :] < dim)
        queries = tl.load(q + head[:, None] * dim + at[None, :], mask=inside, other=0.0)
        top, mass, made = attend_slice(
            queries,
            tl.zeros((ROWS,), tl.int32) + (length - 1),
            begin,
            end,
            tables + request * pages,
            kv,
            key_data,
            key_scales,
            value_data,
            value_scales,
            size,
            heads,
            dim,
            value_dim,
            window,
            scale,
            softcap,
            ROWS,
            KEYS,
            DIM,
            VALUE_DIM,
            KEPT,
            WINDOW,
            SOFTCAP,
        )
        place = head * slices + part
        tl.store(tops + place, top, mask=mine)
        tl.store(masses + place, mass, mask=mine)
        at = tl.arange(0, VALUE_DIM)
        inside = mine[:, None] & (at[None, :] < value_dim)
        tl.store(parts + place[:, None] * value_dim + at[None, :], made, mask=inside)


@triton.jit
def join_slices(
    tops,
    masses,
    parts,
    sinks,
    lengths,
    out,
    query_heads,
    value_dim: tl.constexpr,
    window,
    slices,
    SLICE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merges the slices of one query head of a request."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths + request).to(tl.int32)
    at = tl.arange(0, VALUE_DIM)
    inside = (at < value_dim)[None, :]
    one = tl.zeros((1,), tl.int64)
    top = tl.full((1,), float("-inf"), tl.float32)
    mass = tl.zeros((1,), tl.float32)
    made = tl.zeros((1, VALUE_DIM), tl.float32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - window, 0) // KEYS * KEYS // SLICE
    for part in range(first, tl.cdiv(length, SLICE)):
        place = (request * query_heads + head) * slices + part + one
        next_made = tl.load(parts + place[:, None] * value_dim + at[None, :], mask=inside, other=0.0)
        top, mass, made = join(top, mass, made, tl.load(tops + place), tl.load(masses + place), next_made)
    sink = tl.zeros((1,), tl.float32)
    if SINKS:
        sink += tl.load(sinks + head)
    made = finish(top, mass, made, sink, SINKS)
    place = request * query_heads + head + one
    tl.store(out + place[:, None] * value_dim + at[None, :], made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def attend_blocks(
    q,
    out,
    sinks,
    key_data,
    key_scales,
    value_data,
    value_scales,
    tables,
    starts,
    counts,
    pasts,
    block_owners,
    block_firsts,
    pages,
    size: tl.constexpr,
    heads,
    group: tl.constexpr,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    window,
    scale,
    softcap,
    SLICE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEPT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Attention of `ROWS` of a request's queries with one key head, over their whole past."""
    owner = tl.load(block_owners + tl.program_id(0))
    kv = tl.program_id(1)
    count = tl.load(counts + owner).to(tl.int32)
    past = tl.load(pasts + owner).to(tl.int32)
    member = tl.load(block_firsts + tl.program_id(0)).to(tl.int32) + tl.arange(0, ROWS)
    mine = member < count * group
    token = member // group
    # Rows beyond the last repeat it: they are computed, and not stored.
    position = past + tl.minimum(token, count - 1)
    head = ((tl.load(starts + owner) + token) * heads + kv) * group + member % group
    at = tl.arange(0, DIM)
    inside = mine[:, None] & (at[None, :] < dim)
    queries = tl.load(q + head[:, None] * dim + at[None, :], mask=inside, other=0.0)
    reach = tl.max(position, 0) + 1
    lowest = 0
    if WINDOW:
        lowest = tl.maximum(tl.min(position, 0) + 1 - window, 0) // KEYS * KEYS
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    made = tl.zeros((ROWS, VALUE_DIM), tl.float32)
    for first in range(lowest // SLICE * SLICE, reach, SLICE):
        next_top, next_mass, next_made = attend_slice(
            queries,
            position,
            tl.maximum(first, lowest),
            tl.minimum(first + SLICE, reach),
            tables + owner * pages,
            kv,
            key_data,
            key_scales,
            value_data,
            value_scales,
            size,
            heads,
            dim,
            value_dim,
            window,
            scale,
            softcap,
            ROWS,
            KEYS,
            DIM,
            VALUE_DIM,
            KEPT,
            WINDOW,
            SOFTCAP,
        )
        top, mass, made = join(top, mass, made, next_top, next_mass, next_made)
    sink = tl.zeros((ROWS,), tl.float32)
    if SINKS:
        sink += tl.load(sinks + kv * group + member % group)
    made = finish(top, mass, made, sink, SINKS)
    at = tl.arange(0, VALUE_DIM)
    inside = mine[:, None] & (at[None, :] < value_dim)
    tl.store(out + head[:, None] * value_dim + at[None, :], made.to(out.dtype.element_ty), mask=inside)
