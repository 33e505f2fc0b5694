"""The compiled operations on tensors of any shape, type and place in memory, against what fp64 makes of them.

How far they may be apart is derived from how often a number is rounded on its way, in any order of sums: `gamma` is
Higham's bound for so many roundings one after another. What is stored in 16 bits is rounded once more.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo.ops import (
    RANK_MULTIPLE,
    AttentionSpec,
    DecodeStep,
    Pages,
    Pairs,
    RopeSpec,
    RowGroups,
    add_low_rank,
    choose_tokens,
    gated,
    linear,
    packed_attention,
    paged_decode,
    rms_norm,
    rope_tables,
    rotate,
    token_logprobs,
)
from rondo.ops.attention.pages import encode
from rondo.ops.native.build.ahead import runs
from rondo.ops.native.build.build import compiler
from rondo.ops.native.gemm.linear import takes_bf16
from rondo.ops.native.pointwise.pointwise import KINDS
from rondo.ops.pointwise.activation import SWIGLU_ALPHA
from support.strides import turned, unaligned, with_gaps

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test the compiled kernels"
)
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""The most that rounding to a type changes a number, relative to it."""
U = UNIT[torch.float32]
EXPONENTIAL = 4
"""Roundings that `exp_neg` is worth: Cephes' expf is within 1.7e-7."""
TINY = 1e-30
"""What is below counts as nothing: exponentials end at 1.6e-38, and some instructions know no subnormal numbers."""
WIDE = (torch.float32, torch.bfloat16)

seeds = st.integers(0, 1 << 20)
types = st.sampled_from(WIDE)
ways = st.sampled_from([torch.Tensor.contiguous, unaligned, with_gaps, turned])
many = settings(max_examples=60)
Way = Callable[[Tensor], Tensor]


def gamma(roundings: float) -> float:
    return roundings * U / (1 - roundings * U)


def drawn(seed: int) -> Callable[..., Tensor]:
    """Numbers of sizes that differ by a thousand from row to row."""
    make = torch.Generator().manual_seed(seed)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.5) -> Tensor:
        sizes = 10 ** (spread * (2 * torch.rand(shape[0], *[1] * (len(shape) - 1), generator=make) - 1))
        return (torch.randn(*shape, generator=make) * sizes).to(dtype)

    return numbers


def within(found: Tensor, exact: Tensor, bound: Tensor) -> None:
    """The bound is of what is computed in fp32, before it is stored."""
    allowed = bound + UNIT[found.dtype] * (exact.abs() + bound) + TINY
    apart = (found.double() - exact).abs()
    assert (apart <= allowed).all(), (
        f"{float((apart / allowed).nan_to_num(torch.inf).max()):.3g} of what may be"
    )


@many
@given(seeds, types, ways, st.integers(0, 70), st.integers(1, 600), st.integers(1, 200), st.booleans())
def test_linear(
    seed: int, dtype: torch.dtype, way: Way, rows: int, inputs: int, width: int, biased: bool
) -> None:
    if dtype == torch.bfloat16 and not takes_bf16():
        dtype = torch.float32
    numbers = drawn(seed)
    x, weight = way(numbers(rows, inputs, dtype=dtype)), way(numbers(width, inputs, dtype=dtype))
    bias = numbers(width, dtype=dtype) if biased else None
    exact, sizes = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if bias is not None:
        exact, sizes = exact + bias.double(), sizes + bias.double().abs()
    within(linear(x, weight, bias), exact, gamma(inputs + 2) * sizes)


@many
@given(seeds, types, ways, st.integers(0, 40), st.integers(1, 700), st.sampled_from([0.0, 1.0]))
def test_rms_norm(seed: int, dtype: torch.dtype, way: Way, rows: int, width: int, offset: float) -> None:
    """The mean of squares is rounded width + 3 times, its root half as much."""
    numbers = drawn(seed)
    x, weight = way(numbers(rows, width, dtype=dtype)), numbers(width, dtype=dtype)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight.double() + offset)
    within(rms_norm(x, weight, 1e-6, offset), exact, gamma((width + 3) / 2 + 6) * exact.abs())


@many
@given(seeds, types, ways, st.integers(0, 40), st.integers(1, 300), st.sampled_from(sorted(KINDS)))
def test_gated(seed: int, dtype: torch.dtype, way: Way, rows: int, width: int, kind: str) -> None:
    """A sigmoid carries what its argument was rounded by, at most eight times, as often as the argument is large. One
    plus an error function may be nearly nothing, and then what the one was rounded by decides."""
    numbers = drawn(seed)
    gate, up = (way(numbers(rows, width, dtype=dtype)) for _ in range(2))
    x, by = gate.double(), up.double()
    exact, carried = gated.reference(kind, x, by), torch.zeros_like(x)
    if kind == "gelu_tanh":  # which torch's own takes for one plus a hyperbolic tangent
        carried = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        exact = x * carried.sigmoid() * by
    elif kind == "clamped_swiglu":
        carried = SWIGLU_ALPHA * x
    bound = (8 * carried.abs() + 3 * EXPONENTIAL) * U * exact.abs()
    if kind == "gelu":
        bound += 4 * U * (x * by).abs()
    within(gated(kind, gate, up), exact, bound)


@many
@given(seeds, types, ways, st.integers(0, 30), st.integers(1, 5), st.integers(1, 40), st.integers(0, 20))
def test_rotation(
    seed: int, dtype: torch.dtype, way: Way, tokens: int, heads: int, half: int, more: int
) -> None:
    x = way(drawn(seed)(tokens, heads, 2 * half + more, dtype=dtype))
    spec = RopeSpec(2 * half, 10000.0)
    cos, sin = rope_tables(spec, torch.arange(tokens) * 7, None, dtype)
    wide, c, s = x.double(), cos.double(), sin.double()
    first, second, rest = wide.split([half, half, more], -1)
    exact = torch.cat([first * c - second * s, second * c + first * s, rest], -1)
    first, second, c, s = (each.abs() for each in (first, second, c, s))
    sizes = torch.cat([first * c + second * s, second * c + first * s, torch.zeros_like(rest)], -1)
    within(rotate(spec, x, cos, sin), exact, gamma(3) * sizes)


@st.composite
def attentions(draw: st.DrawFn) -> AttentionSpec:
    kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    dims = [draw(st.sampled_from([1, 7, 16, 32, 36, 64, 96])) for _ in range(2)]
    window = draw(st.none() | st.integers(1, 300))
    softcap = draw(st.none() | st.floats(0.5, 50.0))
    return AttentionSpec(0, kv * group, kv, *dims, dims[0] ** -0.5, window, softcap, draw(st.booleans()))


def stored(spec: AttentionSpec, dtype: torch.dtype, kept: torch.dtype, length: int) -> torch.dtype:
    """What weights are rounded to before they meet values: tiles multiply bf16 alone, and end at no window."""
    both, full = dtype == kept == torch.bfloat16, spec.head_dim % 32 == 0 and spec.value_dim % 16 == 0
    tiles = both and full and (spec.window is None or length < spec.window) and runs("bf16") == "AMX"
    return torch.bfloat16 if tiles else torch.float32


def attended(
    spec: AttentionSpec,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sinks: Tensor | None,
    weights_in: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """One token: q [H, D], what it sees [L, KV, D] and [L, KV, Dv] -> [H, Dv] in fp64, and how far from it fp32 may be.

    A score is rounded dim + 3 times, and in a cap some more; a weight carries what its score was rounded by. Weights
    are sums' terms twice: of what is given, and of what that is divided by. The first in the type of weights.
    """
    group = spec.num_heads // spec.num_kv_heads
    keys, values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("hd,lhd->hl", q.double(), keys) * spec.scale
    sizes = torch.einsum("hd,lhd->hl", q.double().abs(), keys.abs()) * spec.scale
    wrong = gamma(spec.head_dim + 5) * sizes
    if spec.softcap is not None:
        scores = spec.softcap * (scores / spec.softcap).tanh()
        wrong = wrong + 4 * U * spec.softcap
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None]], 1)
    weights = scores.softmax(-1)[:, : len(keys)]
    below = scores.amax(-1) - scores.amin(-1)
    of_weight = wrong.amax(-1) + (2 * below + 2 * EXPONENTIAL + 4) * U
    bound = (2 * of_weight + 2 * gamma(len(keys) + 16) + UNIT[weights_in])[:, None] * torch.einsum(
        "hl,lhd->hd", weights, values.abs()
    )
    return torch.einsum("hl,lhd->hd", weights, values), bound


@settings(max_examples=40)
@given(seeds, types, ways, attentions(), st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_packed_attention(
    seed: int, dtype: torch.dtype, way: Way, spec: AttentionSpec, lengths: list[int]
) -> None:
    numbers = drawn(seed)
    shapes = (
        (spec.num_heads, spec.head_dim),
        (spec.num_kv_heads, spec.head_dim),
        (spec.num_kv_heads, spec.value_dim),
    )
    q, k, v = (way(numbers(sum(lengths), *shape, dtype=dtype, spread=0.5)) for shape in shapes)
    sinks = numbers(spec.num_heads, spread=0.5) if spec.sinks else None
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    found = packed_attention(spec, q, k, v, ends, sinks)
    for start, stop in pairwise(ends):
        for at in range(start, stop, 7):
            first = start if spec.window is None else max(start, at + 1 - spec.window)
            seen = slice(first, at + 1)
            weights_in = stored(spec, dtype, dtype, at + 1 - start)
            within(found[at], *attended(spec, q[at], k[seen], v[seen], sinks, weights_in))


@settings(max_examples=40)
@given(
    seeds,
    types,
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]),
    attentions(),
    st.lists(st.integers(1, 600), min_size=1, max_size=4),
    st.sampled_from([1, 4, 16]),
)
def test_paged_decode(
    seed: int, dtype: torch.dtype, kept: torch.dtype, spec: AttentionSpec, lengths: list[int], size: int
) -> None:
    """Over what the cache holds in its own type."""
    numbers = drawn(seed)
    pages_each = -(-max(lengths) // size)
    count = pages_each * len(lengths)
    keys, values = (
        Pages(kept, *encode(numbers(count, size, spec.num_kv_heads, dim, spread=0.5), kept))
        for dim in (spec.head_dim, spec.value_dim)
    )
    tables = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).view(len(lengths), -1)
    own = torch.tensor(lengths) - 1
    slots = tables[torch.arange(len(lengths)), own // size] * size + own % size
    shapes = (
        (spec.num_heads, spec.head_dim),
        (spec.num_kv_heads, spec.head_dim),
        (spec.num_kv_heads, spec.value_dim),
    )
    q, k, v = (numbers(len(lengths), *shape, dtype=dtype, spread=0.5) for shape in shapes)
    sinks = numbers(spec.num_heads, spread=0.5) if spec.sinks else None
    step = DecodeStep(tables, own + 1, slots, max(lengths))
    found = paged_decode(spec, keys, values, q, k, v, step, sinks)
    for row, length in enumerate(lengths):
        first = 0 if spec.window is None else max(0, length - spec.window)
        seen = step.places(size)[row : row + 1, first:length]
        past = (pages.gather(seen, torch.float32)[0] for pages in (keys, values))
        within(found[row], *attended(spec, q[row], *past, sinks, stored(spec, dtype, kept, length)))


@many
@given(
    seeds,
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    ways,
    st.integers(1, 20),
    st.integers(1, 3000),
    st.sampled_from([0.0, 1.0, 0.3, 2.5]),
)
def test_log_probabilities(
    seed: int, dtype: torch.dtype, way: Way, rows: int, width: int, temperature: float
) -> None:
    """A logit is scaled by an inverse that is rounded, and what is largest taken from it; pieces of 256 are added up in
    fp32, and those in fp64."""
    logits = way(drawn(seed)(rows, width, dtype=dtype, spread=1.0) * 4)
    tokens = torch.randint(0, width, (rows,), generator=torch.Generator().manual_seed(seed))
    scaled = logits.double() / (temperature or 1.0)
    exact = scaled.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    largest = scaled.abs().amax(-1)
    within(token_logprobs(logits, tokens, temperature), exact, gamma(256 + EXPONENTIAL) + 10 * U * largest)


@many
@given(seeds, ways, st.integers(1, 30), st.integers(1, 3000), st.sampled_from([0.3, 1.0, 2.5]), st.booleans())
def test_draws(seed: int, way: Way, rows: int, width: int, temperature: float, with_masks: bool) -> None:
    """The token's own part of the distribution, within what its borders are rounded by, has the random number in it."""
    logits = way(drawn(seed)(rows, width, spread=0.5) * 4)
    make = torch.Generator().manual_seed(seed)
    draws, masks = torch.rand(rows, generator=make), None
    left = logits.double() / temperature
    if with_masks:
        masks = torch.randint(-(1 << 31), 1 << 31, (rows, -(-width // 32)), generator=make).to(torch.int32)
        masks[:, 0] |= 1
        places = torch.arange(width)
        left = left.masked_fill((masks[:, places // 32] >> places % 32 & 1) == 0, -math.inf)
    tokens, _ = choose_tokens(logits, torch.full((rows,), temperature), draws, None, masks)
    shares = left.softmax(-1)
    finite = left.masked_fill(left == -math.inf, 0.0)
    below = finite.amax(-1, keepdim=True) - finite
    bound = 2 * (shares * (4 * below + EXPONENTIAL + 2) * U).sum(-1) + 2 * gamma(256)
    own, end = (x.gather(1, tokens[:, None]).squeeze(1) for x in (shares, shares.cumsum(-1)))
    assert (own > 0).all()
    assert (end - own - bound <= draws).all()
    assert (draws <= end + bound).all()


@many
@given(
    seeds,
    st.integers(1, 300),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=5),
)
def test_low_rank(seed: int, inputs: int, width: int, groups: list[tuple[int, int]]) -> None:
    """A row is rounded in its product with the first matrix, in that with the second, and where it is added."""
    numbers = drawn(seed)
    members = [
        (numbers(RANK_MULTIPLE * rank, inputs), numbers(RANK_MULTIPLE * rank, width)) if rank else None
        for rank, _ in groups
    ]
    addresses = [[m[0].data_ptr(), m[1].data_ptr(), len(m[0])] if m else [0, 0, 0] for m in members]
    counts = [count for _, count in groups]
    rows = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(seed))[: sum(counts)]
    x, out = numbers(sum(counts) + 3, inputs), numbers(sum(counts) + 3, width)
    exact, bound = out.double(), torch.zeros(out.shape, dtype=torch.float64)
    for member, own in zip(members, rows.split(counts), strict=True):
        if member is None:
            continue
        a, b = (each.double() for each in member)
        sizes = exact[own].abs() + x[own].double().abs() @ a.abs().T @ b.abs()
        exact[own] += x[own].double() @ a.T @ b
        bound[own] = gamma(inputs + len(a) + 8) * sizes
    bounds = torch.tensor([0, *counts]).cumsum(0)
    add_low_rank(out, x, Pairs(members, torch.tensor(addresses)), RowGroups(rows, bounds))
    within(out, exact, bound)
