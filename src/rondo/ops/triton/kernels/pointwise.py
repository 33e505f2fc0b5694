"""Pointwise kernels between a layer's products: one row, or a piece of one, at a time, in fp32."""

import triton
import triton.language as tl


@triton.jit
def norm_rows(
    x,
    added,
    weight,
    total,
    out,
    row_stride,
    added_stride,
    size,
    eps,
    offset,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
):
    """The norm of a row; with `ADDS` the norm of x + added, rounded, which is stored to `total`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    inside = at < size
    numbers = tl.load(x + row * row_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        numbers += tl.load(added + row * added_stride + at, mask=inside, other=0.0).to(tl.float32)
        rounded = numbers.to(total.dtype.element_ty)
        tl.store(total + row * size + at, rounded, mask=inside)
        numbers = rounded.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(numbers * numbers, 0) / size + eps)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out + row * size + at, (numbers * inverse * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def gate_pieces(gate, up, out, count, limit, alpha, KIND: tl.constexpr, PIECE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * PIECE + tl.arange(0, PIECE)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        made = g / (1.0 + tl.exp(-g)) * u
    elif KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        made = g / (1.0 + tl.exp(-2.0 * inner)) * u
    elif KIND == "gelu":
        made = 0.5 * g * (1.0 + tl.erf(g * 0.7071067811865476)) * u
    else:
        g = tl.where(g > limit, limit, g)
        u = tl.where(u > limit, limit, tl.where(u < -limit, -limit, u))
        made = (u + 1.0) * (g / (1.0 + tl.exp(-alpha * g)))
    tl.store(out + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotate_tokens(
    x,
    cos,
    sin,
    out,
    token_stride,
    head_stride,
    heads,
    dim,
    half,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotates all heads of a token. Dimensions beyond 2 * half, at most `REST`, pass through."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (at < half)
    given = x + token * token_stride + head * head_stride
    made = out + (token * heads + head) * dim
    if INTERLEAVED:
        first = tl.load(given + 2 * at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(given + 2 * at + 1, mask=inside, other=0.0).to(tl.float32)
    else:
        first = tl.load(given + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(given + half + at, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + token * half + at, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + token * half + at, mask=at < half, other=0.0).to(tl.float32)
    tl.store(made + at, (first * c - second * s).to(out.dtype.element_ty), mask=inside)
    tl.store(made + half + at, (second * c + first * s).to(out.dtype.element_ty), mask=inside)
    if REST > 0:
        beyond = 2 * half + tl.arange(0, REST)[None, :]
        kept = (head < heads) & (beyond < dim)
        tl.store(made + beyond, tl.load(given + beyond, mask=kept, other=0.0), mask=kept)
