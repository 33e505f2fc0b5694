"""Tensors that lie oddly in memory, have no rows, are huge, or are not all finite: for what is compiled."""

import mmap
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops import AttentionSpec, DecodeStep, Pages, linear, packed_attention, paged_decode, token_logprobs
from rondo.ops.gemm.quantized import Quantized, quantized_linear
from rondo.ops.measure import probe
from rondo.ops.native.build import build
from rondo.ops.native.gemm.linear import takes_bf16
from support.strides import turned, unaligned, with_gaps

CASES = {f"{case.operation} {case.dtype}": case for case in probe.cases((1,), streamed=1)}
NUMBERS = 1 << 31
"""More than an index of 32 bits reaches."""
TYPES = (torch.float32, torch.bfloat16)
needs_compiler = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here, and torch's own is slow: install gcc"
)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Take no memory until they are written."""
    size = prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # thousands of pages are not looked up one by one
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def lying(how: Callable[[Tensor], Tensor], each: Any) -> Any:
    if isinstance(each, Quantized):
        return each.mapped(how)
    if isinstance(each, Pages):
        return Pages(each.dtype, how(each.data) if how is unaligned else each.data)
    return how(each) if isinstance(each, Tensor) else each


@pytest.mark.parametrize("how", [unaligned, with_gaps, turned])
@pytest.mark.parametrize("name", CASES)
def test_how_tensors_lie_does_not_matter(name: str, how: Callable[[Tensor], Tensor]) -> None:
    case = CASES[name]
    given = case.given[0]
    odd = tuple(lying(how, each) for each in given)
    version = case.op.version(*given)
    same = case.op.version(*odd) is version and version.__module__.startswith("rondo.ops.native.")
    got, want = case.op(*odd), case.op(*given)
    for ours, theirs in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (got, want)), strict=True
    ):
        if same:
            assert torch.equal(ours, theirs)
        else:  # torch's own, or one that is summed in another order
            assert (ours - theirs).abs().max() <= 0.04 * theirs.abs().max()


ROWS = [name for name in CASES if not name.startswith(("attention", "paged"))]
"""What takes rows of anything; attention is told whose they are."""


@pytest.mark.parametrize("name", ROWS)
def test_no_rows_give_no_rows(name: str) -> None:
    case = CASES[name]
    first, *others = case.given[0]
    none = [each[:0] if isinstance(each, Tensor) else each for each in (first, *others)]
    if "linear" in name or "norm" in name:
        none = [first[:0], *others]
    got, want = case.op(*none), case.op.reference(*none)
    for ours, theirs in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (got, want)), strict=True
    ):
        assert ours.shape == theirs.shape
        assert len(ours) == 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_carry_what_is_not_finite(dtype: torch.dtype) -> None:
    """As torch does; and rows beside it keep their bits."""
    make = torch.Generator().manual_seed(0)
    for rows in (5, 40):
        x, weight = (torch.randn(n, 48, generator=make).to(dtype) for n in (rows, 35))
        clean = linear(x, weight)
        x[1, 3], x[2, 5], x[3, 7], x[3, 8] = torch.nan, torch.inf, -torch.inf, torch.inf
        weight[9, 0], weight[10, 40] = torch.nan, -torch.inf
        got, want = linear(x, weight), F.linear(x.double(), weight.double())
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got[got.isinf()].double(), want[want.isinf()])
        kept = want.isfinite()
        assert torch.equal(got[kept], clean[kept])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_attention_keeps_what_is_not_finite_to_its_document(dtype: torch.dtype) -> None:
    spec, bounds = AttentionSpec(0, 4, 2, 32, 32, 0.2), [0, 7, 300, 311]
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(311, heads, 32, generator=make).to(dtype) for heads in (4, 2, 2))
    clean = packed_attention(spec, q, k, v, bounds)
    k[20], v[30] = torch.nan, torch.inf
    got = packed_attention(spec, q, k, v, bounds)
    others = [*range(7), *range(300, 311)]
    assert torch.equal(got[others], clean[others])
    assert got[20:300].isnan().flatten(1).any(1).all()


def test_log_probabilities_of_rows_that_are_not_finite() -> None:
    make = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(6, 300, generator=make), torch.arange(6)
    clean = token_logprobs(logits, tokens)
    logits[1, 7], logits[2, 2], logits[3, 100], logits[4] = torch.nan, torch.inf, -torch.inf, -torch.inf
    got, want = token_logprobs(logits, tokens), logits.log_softmax(-1)[torch.arange(6), tokens]
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[[0, 5]], clean[[0, 5]])


@needs_compiler
def test_a_weight_of_more_numbers_than_32_bits_count() -> None:
    dtype = torch.bfloat16 if takes_bf16() else torch.float32
    inputs = 8192
    weight = zeros(NUMBERS // inputs + 40, inputs, dtype=dtype)
    ends = torch.randn(40, inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[-40:] = ends
    x = torch.randn(1, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = linear(x, weight)
    assert torch.equal(got[:, -40:], linear(x, ends))
    assert not got[:, :-40].any()


@needs_compiler
def test_quantized_weights_of_more_bytes_than_32_bits_count() -> None:
    inputs = 32768
    data = zeros(NUMBERS // inputs + 40, inputs, dtype=torch.int8)
    data[-40:] = torch.randint(-127, 127, (40, inputs), generator=torch.Generator().manual_seed(0))
    weight = Quantized("int8", data, torch.full((len(data), 1), 0.01))
    x = torch.randn(1, inputs, generator=torch.Generator().manual_seed(1))
    got = quantized_linear(x, weight)
    assert torch.equal(got[:, -40:], quantized_linear(x, weight.rows(slice(len(data) - 40, len(data)))))
    assert not got[:, :-40].any()


@needs_compiler
def test_a_cache_of_more_numbers_than_32_bits_count() -> None:
    spec, size = AttentionSpec(0, 4, 2, 128, 128, 0.1), 16
    blocks = NUMBERS // (size * 2 * 128) + 3
    make = torch.Generator().manual_seed(0)
    past = torch.randn(2, 2, size, 2, 128, generator=make).to(torch.bfloat16)
    new = [torch.randn(1, heads, 128, generator=make).to(torch.bfloat16) for heads in (4, 2, 2)]

    def run(count: int) -> Tensor:
        """With the past in the last two blocks."""
        pages = [Pages(torch.bfloat16, zeros(count, size, 2, 128, dtype=torch.bfloat16)) for _ in past]
        for each, own in zip(pages, past, strict=True):
            each.data[-2:] = own
        table, slot = torch.tensor([[count - 2, count - 1]]), torch.tensor([count * size - 4])
        return paged_decode(spec, *pages, *new, DecodeStep(table, torch.tensor([29]), slot, 29))

    assert torch.equal(run(blocks), run(2))
