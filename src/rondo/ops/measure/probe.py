"""Measured speed of each operation, beside the limits of memory and cores, for `rondo doctor` and the benchmark.

Tensors have the sizes of Qwen3 0.6B, and more total bytes than the caches, so that they are read from memory as in a
model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec, packed_attention
from rondo.ops.attention.paged import DecodeStep, paged_decode
from rondo.ops.attention.pages import Pages
from rondo.ops.dispatch import Op, references_only
from rondo.ops.gemm.linear import linear
from rondo.ops.gemm.quantized import Kind, Quantized, quantized_linear
from rondo.ops.measure.limits import HardwareLimits
from rondo.ops.native.build.ahead import lost, runs
from rondo.ops.native.build.numbers import SHORT
from rondo.ops.native.build.tuned import Product
from rondo.ops.native.gemm.linear import takes_bf16
from rondo.ops.pointwise.activation import gated
from rondo.ops.pointwise.norm import rms_norm
from rondo.ops.pointwise.rope import RopeSpec, rotate
from rondo.ops.vocabulary.draw import choose_tokens
from rondo.ops.vocabulary.logprobs import row_logprobs

HIDDEN, INNER, VOCABULARY, HEADS, KV, DIM = 1024, 3072, 151936, 16, 8, 128
CONTEXT, PAGE = 8192, 16
TOKENS = 256
"""Tokens of a step for the pointwise operations, and of a document for attention."""
ANSWERS = 16
"""Rows for sampling and log-probabilities."""
TYPES = (torch.float32, torch.bfloat16)
QUANTIZED: dict[str, tuple[Kind, str]] = {
    "int8": ("int8", "int16"),
    "w8a8": ("int8", "int8"),
    "int4": ("int4", "int16"),
    "fp8": ("fp8", "fp32"),
    "mxfp4": ("mxfp4", "int16"),
}
"""Kind of weight, and number format of the products: rows of x are rounded to 16 bits, or to 8 (w8a8)."""


@dataclass(frozen=True)
class Case:
    """An operation on tensors of a kind; each call uses the next of `given`. A call reads `read` bytes and computes
    `flops` operations on numbers named as in `HardwareLimits`. `plain` is the same operation in torch, if there is
    one."""

    operation: str
    dtype: str
    sizes: str
    op: Op[..., Any]
    given: list[tuple[Any, ...]]
    read: float
    flops: float
    arithmetic: str = "fp32"
    plain: Callable[..., Any] | None = None

    def limit(self, limits: HardwareLimits) -> float:
        """Minimum seconds of a call."""
        return limits.seconds(self.read, self.flops, self.arithmetic)

    def seconds(self, budget: float, call: Callable[..., Any] | None = None) -> float:
        """Seconds of a call: the fastest round over all of `given`, measured for about `budget` seconds."""
        call, best, end = call or self.op, float("inf"), time.perf_counter() + budget
        with torch.inference_mode():
            call(*self.given[0])
            while best == float("inf") or time.perf_counter() < end:
                start = time.perf_counter()
                for given in self.given:
                    call(*given)
                best = min(best, (time.perf_counter() - start) / len(self.given))
        return best

    def version(self) -> tuple[str, str]:
        """The version that runs, and the reason."""
        with torch.inference_mode():
            chosen = self.op.version(*self.given[0])
        if chosen.__module__.startswith("rondo.ops.native."):
            instructions = runs(self.dtype) if self.flops and self.op is linear else runs("fp32")
            return f"native, {instructions}", "compiled for this CPU"
        if references_only():
            return "reference", "RONDO_OPS=reference"
        if chosen is self.op.reference:
            return "reference", lost() or "no compiled version takes this"
        return "torch", (chosen.__doc__ or "").partition("\n")[0]


def cases(
    rows: Sequence[int], weights: Sequence[tuple[int, int]] = ((INNER, HIDDEN),), streamed: int = 96 << 20
) -> Iterator[Case]:
    """Yields cases one at a time to bound memory, each with `streamed` bytes of tensors. Products have `rows` rows of x
    and weights [N, K] of these shapes; quantized ones use the first shape only."""
    for dtype in TYPES:
        for shape in weights:
            yield from (_linear(dtype, count, shape, streamed) for count in rows)
    for name in QUANTIZED:
        yield from (_quantized(name, count, weights[0], streamed) for count in rows)
    for dtype in TYPES:
        yield _attention(dtype, 1 + streamed // (TOKENS * (HEADS + 2 * KV) * DIM * dtype.itemsize))
        yield _decode(dtype, 1 + streamed // (2 * CONTEXT * KV * DIM * dtype.itemsize))
        yield from _between(dtype, streamed // (TOKENS * dtype.itemsize))
        yield _logprobs(dtype, 1 + streamed // (ANSWERS * VOCABULARY * dtype.itemsize))
    yield _drawing()


def products() -> list[Product]:
    """The products of `cases` whose work split can be tuned on this machine."""
    return [
        Product(dtype, INNER, HIDDEN, torch.get_num_threads())
        for dtype in TYPES
        if dtype != torch.bfloat16 or takes_bf16()
    ]


def _linear(dtype: torch.dtype, rows: int, shape: tuple[int, int], streamed: int) -> Case:
    width, inputs = shape
    size = width * inputs * dtype.itemsize
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(width, inputs).to(dtype)
    given = [(x, weight.clone()) for _ in range(1 + streamed // size)]
    flops = 2.0 * rows * inputs * width
    name = SHORT[dtype]
    return Case("linear", name, _sizes(rows, shape), linear, given, size, flops, name, F.linear)


def _quantized(name: str, rows: int, shape: tuple[int, int], streamed: int) -> Case:
    """Random bytes are valid numbers of every kind, except NaN in fp8."""
    (kind, arithmetic), (width, inputs) = QUANTIZED[name], shape
    columns, group = inputs if kind in ("int8", "fp8") else inputs // 2, 128 if kind == "int4" else inputs
    scales = torch.full((width, inputs // group), 0.01)
    if kind == "mxfp4":
        scales = torch.full((width, inputs // 32), 120, dtype=torch.uint8)
    size = width * columns + scales.numel() * scales.element_size()
    as_stored = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.get(kind, torch.uint8)
    data = torch.randint(0, 120, (width, columns), dtype=torch.uint8).view(as_stored)
    x, many = torch.randn(rows, inputs), 1 + streamed // size
    activations: Literal["float", "int8"] = "int8" if name == "w8a8" else "float"
    given = [(x, Quantized(kind, data.clone(), scales.clone(), activations=activations)) for _ in range(many)]
    flops = 2.0 * rows * inputs * width
    sizes = _sizes(rows, shape)
    return Case("quantized linear", name, sizes, quantized_linear, given, size, flops, arithmetic)


def _sizes(rows: int, shape: tuple[int, int]) -> str:
    return f"{rows} x {shape[1]} by {shape[0]}"


def _attention(dtype: torch.dtype, count: int) -> Case:
    """Attention over a single document, as in prefill and training."""
    spec = AttentionSpec(0, HEADS, KV, DIM, DIM, DIM**-0.5)
    given = [
        (spec, *(torch.randn(TOKENS, heads, DIM).to(dtype) for heads in (HEADS, KV, KV)), (0, TOKENS))
        for _ in range(count)
    ]
    read = 1.0 * TOKENS * (HEADS + 2 * KV) * DIM * dtype.itemsize
    flops, name = 2.0 * TOKENS * (TOKENS + 1) * HEADS * DIM, SHORT[dtype]
    return Case("attention", name, f"{TOKENS} tokens", packed_attention, given, read, flops, name)


def _decode(dtype: torch.dtype, count: int) -> Case:
    """Decode of one token of one request."""
    spec = AttentionSpec(0, HEADS, KV, DIM, DIM, DIM**-0.5)
    blocks = CONTEXT // PAGE

    past = torch.randn(blocks, PAGE, KV, DIM).to(dtype)

    def pages() -> Pages:
        return Pages(dtype, past.clone())

    def row(heads: int) -> Tensor:
        return torch.randn(1, heads, DIM).to(dtype)

    given = [
        (
            spec,
            pages(),
            pages(),
            row(HEADS),
            row(KV),
            row(KV),
            DecodeStep(
                torch.randperm(blocks)[None], torch.tensor([CONTEXT]), torch.tensor([CONTEXT - 1]), CONTEXT
            ),
        )
        for _ in range(count)
    ]
    read, flops = 2.0 * CONTEXT * KV * DIM * dtype.itemsize, 4.0 * CONTEXT * HEADS * DIM
    name = SHORT[dtype]
    return Case("paged decode", name, f"{CONTEXT} tokens", paged_decode, given, read, flops, name)


def _between(dtype: torch.dtype, columns: int) -> Iterator[Case]:
    """Pointwise operations between products, with `columns` numbers in total."""
    name, size = SHORT[dtype], dtype.itemsize
    weight = torch.ones(HIDDEN, dtype=dtype)
    norms = [(torch.randn(TOKENS, HIDDEN).to(dtype), weight, 1e-6) for _ in range(1 + columns // HIDDEN)]
    plain = lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps)  # noqa: E731
    shape = f"{TOKENS} x {HIDDEN}"
    yield Case("rms norm", name, shape, rms_norm, norms, 2.0 * TOKENS * HIDDEN * size, 0.0, plain=plain)
    pairs = [
        ("silu", *(torch.randn(TOKENS, INNER).to(dtype) for _ in range(2)))
        for _ in range(1 + columns // (2 * INNER))
    ]
    plain = lambda kind, gate, up: F.silu(gate) * up  # noqa: E731
    yield Case(
        "swiglu", name, f"{TOKENS} x {INNER}", gated, pairs, 3.0 * TOKENS * INNER * size, 0.0, plain=plain
    )
    rope = RopeSpec(DIM, 1e6)
    tables = [torch.randn(TOKENS, 1, DIM // 2).to(dtype) for _ in range(2)]
    heads = [
        (rope, torch.randn(TOKENS, HEADS, DIM).to(dtype), *tables)
        for _ in range(1 + columns // (HEADS * DIM))
    ]
    shape = f"{TOKENS} x {HEADS} x {DIM}"
    yield Case("rotation", name, shape, rotate, heads, 2.0 * TOKENS * HEADS * DIM * size, 0.0)


def _logprobs(dtype: torch.dtype, count: int) -> Case:
    logits = torch.randn(ANSWERS, VOCABULARY).to(dtype)
    given = [(logits.clone(), torch.randint(0, VOCABULARY, (ANSWERS,)), None) for _ in range(count)]
    read, sizes = 1.0 * logits.nbytes, f"{ANSWERS} x {VOCABULARY}"
    return Case("log-probabilities", SHORT[dtype], sizes, row_logprobs, given, read, 0.0)


def _drawing() -> Case:
    given = [
        (
            torch.randn(ANSWERS, VOCABULARY),
            torch.full((ANSWERS,), 0.8),
            torch.rand(ANSWERS),
            torch.ones(ANSWERS),
        )
        for _ in range(6)
    ]
    read = ANSWERS * VOCABULARY * 4.0
    return Case("draw a token", "fp32", f"{ANSWERS} x {VOCABULARY}", choose_tokens, given, read, 0.0)
