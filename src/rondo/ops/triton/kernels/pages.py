"""Reading and writing rows of a KV cache's pages in each dtype of `ops/attention/pages.py`."""

import triton
import triton.language as tl

HALFWAY = tl.constexpr(12582912.0)
"""1.5 * 2**23: adding it to a float of less than half its size and subtracting it again rounds to an integer, ties to
even."""


@triton.jit
def from_e4m3(octets):
    """e4m3 bytes -> fp32."""
    size = (octets & 0x7F).to(tl.uint32)
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    number = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    return tl.where(octets >= 128, -number, number)


@triton.jit
def to_e4m3(numbers):
    """fp32 up to 448 in magnitude -> e4m3 bytes; ties to even."""
    bits = numbers.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    tiny = ((tl.abs(numbers) * 512.0 + HALFWAY) - HALFWAY).to(tl.uint32)
    octet = tl.where(tl.abs(numbers) < 0.015625, tiny, normal)
    return (octet | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def load_rows(
    data,
    scales,
    rows,
    seen,
    width: tl.constexpr,
    KEPT: tl.constexpr,
    WIDTH: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Rows [K] of `width` numbers -> [K, WIDTH]; zeros for rows outside `seen`, for any stored value."""
    at = tl.arange(0, WIDTH)
    inside = seen[:, None] & (at[None, :] < width)
    raw = tl.load(data + rows[:, None] * width + at[None, :], mask=inside, other=0)
    if KEPT == "plain":
        numbers = raw.to(TYPE)
    else:
        scale = tl.load(scales + rows, mask=seen, other=0.0)
        plain = from_e4m3(raw) if KEPT == "fp8" else raw.to(tl.float32)
        numbers = (plain * scale[:, None]).to(TYPE)
    return numbers


@triton.jit
def store_heads(
    given,
    data,
    scales,
    slot,
    token_stride,
    head_stride,
    heads,
    width: tl.constexpr,
    KEPT: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Stores all heads of a token to its slot."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    at = tl.arange(0, WIDTH)
    inside = (head[:, None] < heads) & (at[None, :] < width)
    here = given + token * token_stride + head[:, None] * head_stride + at[None, :]
    numbers = tl.load(here, mask=inside, other=0.0)
    row = slot * heads + head
    there = data + row[:, None] * width + at[None, :]
    if KEPT == "plain":
        tl.store(there, numbers.to(data.dtype.element_ty), mask=inside)
    else:
        largest: tl.constexpr = 127.0 if KEPT == "int8" else 448.0
        share: tl.constexpr = 1.0 / largest
        numbers = numbers.to(tl.float32)
        strange = tl.max((numbers != numbers).to(tl.int32), 1) > 0
        top = tl.where(strange, float("nan"), tl.max(tl.abs(numbers), 1))
        inverse = tl.div_rn(tl.full((HEADS,), largest, tl.float32), top)
        usable = (inverse > 0) & (inverse < float("inf"))
        numbers = tl.where(usable[:, None], numbers * inverse[:, None], 0.0)
        if KEPT == "int8":
            tl.store(there, ((numbers + HALFWAY) - HALFWAY).to(tl.int8), mask=inside)
        else:
            tl.store(there, to_e4m3(numbers), mask=inside)
        tl.store(scales + row, top * share, mask=head < heads)


@triton.jit
def write_tokens(
    k,
    v,
    key_data,
    key_scales,
    value_data,
    value_scales,
    slots,
    k_token,
    k_head,
    v_token,
    v_head,
    heads,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    KEPT: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Stores a token's keys and values. A token with a slot below 0 is skipped."""
    slot = tl.load(slots + tl.program_id(0))
    if slot >= 0:
        store_heads(k, key_data, key_scales, slot, k_token, k_head, heads, dim, KEPT, HEADS, DIM)
        store_heads(
            v, value_data, value_scales, slot, v_token, v_head, heads, value_dim, KEPT, HEADS, VALUE_DIM
        )
