"""Kernels over rows of logits in slices of the vocabulary: sums for log-probabilities, and sampling."""

import triton
import triton.language as tl


@triton.jit
def sum_slices(
    logits,
    scales,
    tops,
    masses,
    row_stride,
    scale_stride,
    width,
    SLICE: tl.constexpr,
    SCALED: tl.constexpr,
):
    """A slice's largest logit, and its sum of exponentials relative to that."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    inside = at < width
    x = tl.load(logits + row * row_stride + at, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        x = x * tl.load(scales + row * scale_stride)
    x = tl.where(inside, x, float("-inf"))
    top = tl.max(x, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(tops + place, top)
    tl.store(masses + place, tl.sum(tl.exp(x - base), 0))


@triton.jit
def score_tokens(
    logits,
    tokens,
    scales,
    tops,
    masses,
    out,
    row_stride,
    scale_stride,
    width,
    slices,
    SLICES: tl.constexpr,
    SCALED: tl.constexpr,
):
    """The log-probability of a row's token; NaN for a token outside the vocabulary."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SLICES)
    here = tl.load(tops + row * slices + at, mask=at < slices, other=float("-inf"))
    mass = tl.load(masses + row * slices + at, mask=at < slices, other=0.0)
    top = tl.max(here, 0)
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < width)
    x = tl.load(logits + row * row_stride + token, mask=known, other=float("nan")).to(tl.float32)
    if SCALED:
        x = x * tl.load(scales + row * scale_stride)
    tl.store(out + row, x - top - tl.log(tl.sum(mass * tl.exp(here - top), 0)))


@triton.jit
def load_logits(logits, masks, row, at, row_stride, words, width, MASKED: tl.constexpr):
    """Logits; -inf beyond the width and for a token whose mask bit is not set."""
    x = tl.load(logits + row * row_stride + at, mask=at < width, other=float("-inf"))
    if MASKED:
        word = tl.load(masks + row * words + at // 32, mask=at < width, other=0)
        x = tl.where(((word >> (at % 32)) & 1) != 0, x, float("-inf"))
    return x


@triton.jit
def look_through(
    logits,
    masks,
    temperatures,
    bests,
    places,
    masses,
    row_stride,
    words,
    width,
    SLICE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A slice's largest logit (NaN if one is), its first position, and the slice's mass relative to it."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    x = load_logits(logits, masks, row, at, row_stride, words, width, MASKED)
    strange = tl.max((x != x).to(tl.int32), 0) > 0
    x = tl.where(x != x, float("-inf"), x)
    best = tl.max(x, 0)
    base = tl.where(best == float("-inf"), 0.0, best)
    temperature = tl.load(temperatures + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    here = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(bests + here, tl.where(strange, float("nan"), best))
    tl.store(places + here, tl.program_id(1) * SLICE + tl.argmax(x, 0))
    tl.store(masses + here, tl.sum(tl.exp((x - base) / temperature), 0))


@triton.jit
def choose_rows(
    logits,
    masks,
    temperatures,
    draws,
    bests,
    places,
    masses,
    tokens,
    row_stride,
    words,
    width,
    slices,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Samples a row's token: first the slice that the draw falls into, then the position in it. -1 if the largest logit
    is not finite."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SLICES)
    best = tl.load(bests + row * slices + part, mask=part < slices, other=float("-inf"))
    strange = tl.max((best != best).to(tl.int32), 0) > 0
    best = tl.where(best != best, float("-inf"), best)
    top = tl.max(best, 0)
    finite = (top > float("-inf")) & (top < float("inf"))
    finite = finite & (strange == 0)
    token = tl.load(places + row * slices + tl.argmax(best, 0))
    temperature = tl.load(temperatures + row)
    if (temperature > 0) & finite:
        mass = tl.load(masses + row * slices + part, mask=part < slices, other=0.0)
        mass = mass * tl.exp((best - top) / temperature)
        reached = tl.cumsum(mass, 0)
        target = tl.load(draws + row) * tl.max(reached, 0)
        chosen = tl.sum((reached <= target).to(tl.int32), 0)
        chosen = tl.minimum(chosen, tl.max(tl.where(mass > 0, part, 0), 0))
        rest = target - tl.max(tl.where(part < chosen, reached, 0.0), 0)
        at = chosen * SLICE + tl.arange(0, SLICE)
        x = load_logits(logits, masks, row, at, row_stride, words, width, MASKED)
        likely = tl.exp((x - top) / temperature)
        passed = tl.sum((tl.cumsum(likely, 0) <= rest).to(tl.int32), 0)
        last = tl.max(tl.where(likely > 0, at, 0), 0)
        token = tl.minimum(chosen * SLICE + passed, last).to(tl.int64)
    tl.store(tokens + row, tl.where(finite, token, -1))
