"""The compiled products with weights of few bits against the references, within the bound that their rounding has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo.ops import quantized_linear
from rondo.ops.dispatch import use_reference
from rondo.ops.gemm.quantized import Quantized, grouped_quantized_linear
from rondo.ops.native.build import build, level
from rondo.ops.native.quantized import quantized as native
from support.threads import threads

pytestmark = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test the compiled kernels"
)

KINDS = ("int8", "int8 activations", "int4", "int4 with zeros", "mxfp4", "fp8")
SPAN, LARGEST = 256, 32767


def weight_of(
    kind: str,
    rows: int,
    columns: int,
    group: int,
    block: int = 1,
    experts: tuple[int, ...] = (),
    seed: int = 0,
) -> Quantized:
    make = torch.Generator().manual_seed(seed)

    def bytes_of(*shape: int, end: int = 256) -> Tensor:
        return torch.randint(0, end, (*experts, *shape), generator=make, dtype=torch.uint8)

    scales = torch.rand(*experts, rows // block, columns // group, generator=make) * 0.02 + 0.001
    if kind == "fp8":
        numbers = torch.randn(*experts, rows, columns, generator=make) * 20
        return Quantized("fp8", numbers.to(torch.float8_e4m3fn), scales)
    if kind.startswith("int8"):
        data = bytes_of(rows, columns).view(torch.int8)
        return Quantized(
            "int8", data, scales, activations="int8" if kind.endswith("activations") else "float"
        )
    if kind == "mxfp4":
        return Quantized("mxfp4", bytes_of(rows, columns // 2), bytes_of(rows, columns // 32, end=20) + 110)
    zeros = bytes_of(rows, columns // group, end=17) if kind.endswith("zeros") else None
    return Quantized("int4", bytes_of(rows, columns // 2), scales, zeros)


@st.composite
def weights(draw: st.DrawFn) -> Quantized:
    """One group may have any number of columns (of whole bytes), several are of whole reads."""
    kind = draw(st.sampled_from(KINDS))
    rows, seed = draw(st.integers(1, 40)), draw(st.integers(0, 99))
    least = {"fp8": 16, "mxfp4": 32}.get(kind, 32 if kind.startswith("int4") else 16)
    groups = 1 if kind.endswith("activations") else draw(st.integers(1, 4))
    if kind == "mxfp4":
        return weight_of(kind, rows, 32 * groups, 32, seed=seed)
    if groups == 1 and kind != "fp8":
        columns = draw(st.integers(1, 400)) * (2 if kind.startswith("int4") else 1)
        return weight_of(kind, rows, columns, columns, seed=seed)
    group = least * draw(st.integers(1, 12))
    block = draw(st.sampled_from([b for b in (1, 2, 5) if rows % b == 0])) if kind in ("int8", "fp8") else 1
    return weight_of(kind, rows, group * groups, group, block, seed=seed)


def bound(x: Tensor, weight: Quantized) -> Tensor:
    """How far [M, N] may be from the exact product: half a step of x in each piece, and fp32's own rounding."""
    wide, x = weight.dequantized().double().abs(), x.double().abs()
    roundings = x.shape[-1] / min(weight.group, SPAN) + 6
    if weight.kind == "fp8":
        roundings += weight.group / 8 + 8
    allowed = roundings * 2.0**-24 * (x @ wide.T)
    if weight.kind != "fp8":
        for group in range(0, x.shape[-1], weight.group):
            for start in range(group, group + weight.group, SPAN):
                piece = slice(start, min(start + SPAN, group + weight.group))
                step = x[:, piece].amax(-1, keepdim=True) / LARGEST
                allowed += 0.5001 * step * wide[:, piece].sum(-1)
    return allowed


@settings(max_examples=150)
@given(weights(), st.integers(0, 70), st.integers(0, 99), st.sampled_from([torch.float32, torch.bfloat16]))
def test_products_are_within_their_bound(weight: Quantized, rows: int, seed: int, dtype: torch.dtype) -> None:
    make = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-3, 3, rows)[:, None]
    x = (torch.randn(rows, weight.shape[1], generator=make) * sizes).to(dtype)
    assert native.fits(weight)
    got = quantized_linear(x, weight)
    assert got.dtype == dtype
    if weight.activations == "int8":
        with use_reference():
            assert torch.equal(got, quantized_linear(x, weight))
        return
    exact = x.double() @ weight.dequantized().double().T
    rounding = 2.0**-8 * exact.abs() if dtype == torch.bfloat16 else 0.0
    assert ((got.double() - exact).abs() <= bound(x, weight) + rounding + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_whatever_is_beside_it_and_however_many_threads(kind: str) -> None:
    whole = kind.endswith("activations")
    weight = weight_of(kind, 171, 768, 768 if whole else 32 if kind == "mxfp4" else 128)
    x = torch.randn(70, 768)
    alone = torch.cat([quantized_linear(row[None], weight) for row in x])
    for rows in (1, 2, 3, 5, 8, 33, 70):
        for count in (1, 2, 3):
            with threads(count):
                assert torch.equal(quantized_linear(x[:rows], weight), alone[:rows])


LONG_ROWS = [
    *(("int8", 4352, group) for group in (16, 32, 64, 128, 256, 4352)),
    *(("int8", 5120, group) for group in (80, 320, 1024)),
    *(("int4 with zeros", 8704, group) for group in (32, 64, 128, 256, 8704)),
    *(("int4", 5120, group) for group in (160, 320, 512)),
    ("int8 activations", 4353, 4353),
    ("mxfp4", 2144, 32),
    ("fp8", 2304, 48),
]


@pytest.mark.parametrize(("kind", "columns", "group"), LONG_ROWS)
def test_rows_are_as_long_and_groups_as_small_as_one_likes(kind: str, columns: int, group: int) -> None:
    weight, x = weight_of(kind, 37, columns, group), torch.randn(19, columns)
    got = quantized_linear(x, weight)
    for rows in (1, 2, 3, 7):
        assert torch.equal(quantized_linear(x[:rows], weight), got[:rows])
    if weight.activations == "int8":
        with use_reference():
            assert torch.equal(got, quantized_linear(x, weight))
        return
    exact = x.double() @ weight.dequantized().double().T
    assert ((got.double() - exact).abs() <= bound(x, weight)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_are_carried(kind: str) -> None:
    weight = weight_of(kind, 9, 64, 64 if kind.endswith("activations") else 32)
    x = torch.randn(6, 64)
    x[1, 3], x[2, 5], x[3, 7], x[4, 40] = torch.nan, torch.inf, -torch.inf, 3e30
    got = quantized_linear(x, weight)
    with use_reference():
        want = quantized_linear(x, weight)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.equal(got[want.isinf()], want[want.isinf()])
    assert torch.equal(got[[0, 5]], quantized_linear(x[[0, 5]], weight))


@pytest.mark.parametrize("kind", KINDS)
def test_small_zero_and_strange_rows(kind: str) -> None:
    weight, bias = weight_of(kind, 9, 64, 64 if kind.endswith("activations") else 32), torch.randn(9)
    assert (quantized_linear(torch.zeros(3, 64), weight) == 0).all()
    assert quantized_linear(torch.full((1, 64), 1e-42), weight).abs().max() < 1e-30
    assert quantized_linear(torch.empty(0, 64), weight).shape == (0, 9)
    x = torch.randn(64, 10).T
    pieces = torch.stack([quantized_linear(row, weight, bias) for row in x.contiguous()])
    assert torch.equal(quantized_linear(x, weight, bias), pieces)
    with pytest.raises(RuntimeError, match="64 columns"):
        quantized_linear(torch.randn(3, 63), weight)


def test_order_of_columns_is_followed() -> None:
    weight, x = weight_of("int4 with zeros", 20, 256, 64), torch.randn(5, 256)
    order = torch.randperm(256)
    assert torch.equal(
        quantized_linear(x, replace(weight, order=order)), quantized_linear(x[:, order], weight)
    )


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_what_it_is_for_is_trained_through(kind: str) -> None:
    weight = weight_of(kind, 9, 64, 32)
    x, grad = torch.randn(5, 64, requires_grad=True), torch.randn(5, 9)
    out = quantized_linear(x, weight)
    out.backward(grad)
    assert torch.equal(out.detach(), quantized_linear(x.detach(), weight))
    assert torch.allclose(x.grad, grad @ weight.dequantized(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_meet_the_experts_they_belong_to(kind: str) -> None:
    group = 64 if kind.endswith("activations") else 32
    stacked = weight_of(kind, 21, 64, group, experts=(5,))
    counts = [3, 46, 0, 10, 1]
    x = torch.randn(60, 64)
    with threads(2):
        got = grouped_quantized_linear(x, stacked, counts)
    each = [quantized_linear(rows, stacked.expert(i)) for i, rows in enumerate(x.split(counts))]
    assert torch.equal(got, torch.cat(each))
    x.requires_grad_()
    grouped_quantized_linear(x, stacked, counts).sum().backward()
    assert torch.allclose(x.grad[0], stacked.expert(0).dequantized().sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "weight",
    [
        weight_of("int8", 4, 40, 20),
        weight_of("int4", 4, 96, 16),
        weight_of("fp8", 4, 24, 24),
        replace(weight_of("fp8", 4, 64, 32), order=torch.arange(64)),
    ],
    ids=["int8", "int4", "fp8", "order"],
)
def test_what_does_not_fit_runs_by_the_reference(weight: Quantized) -> None:
    x = torch.randn(3, weight.shape[1])
    assert not native.fits(weight)
    assert torch.equal(quantized_linear(x, weight), quantized_linear.reference(x, weight))


def test_every_level_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of integers are exact, whatever adds them up."""
    x = torch.randn(7, 352)
    weights = [weight_of("int8", 19, 352, 352), weight_of("int4 with zeros", 19, 352, 32)]
    weights += [weight_of("mxfp4", 19, 352, 32), weight_of("int8 activations", 19, 352, 352)]
    weights += [
        weight_of("int4", 19, 338, 338),
        weight_of("int8", 19, 352, 32),
        weight_of("int4", 19, 256, 256),
    ]
    found = []
    for name in level.available():
        monkeypatch.setenv("RONDO_CPU", name)
        build.library.cache_clear()
        found.append(
            [quantized_linear(x[:rows, : weight.shape[1]], weight) for weight in weights for rows in (2, 7)]
        )
    build.library.cache_clear()
    for results in found[1:]:
        assert all(map(torch.equal, results, found[0]))
