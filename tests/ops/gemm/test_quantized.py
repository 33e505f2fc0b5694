"""The one form of a quantized weight: what its numbers stand for, the product with it, and forms that make no sense."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rondo.ops import linear
from rondo.ops.gemm.quantized import (
    E2M1,
    EXACT_COLUMNS,
    Quantized,
    integer_sums,
    pack,
    quantized_linear,
    unpack,
)

N, K = 6, 64


def random(
    kind: str, *, experts: tuple[int, ...] = (), rows=N, columns=K, group=32, block_rows=1
) -> Quantized:
    make = torch.Generator().manual_seed(rows + columns)
    scales = torch.rand(*experts, rows // block_rows, columns // group, generator=make) + 0.1
    whole = (*experts, rows, columns)
    if kind == "int8":
        return Quantized("int8", torch.randint(-128, 128, whole, generator=make, dtype=torch.int8), scales)
    if kind == "fp8":
        numbers = torch.randn(whole, generator=make).to(torch.float8_e4m3fn)
        return Quantized("fp8", numbers, scales)
    data = torch.randint(0, 256, (*experts, rows, columns // 2), generator=make, dtype=torch.uint8)
    if kind == "mxfp4":
        exponents = torch.randint(
            120, 130, (*experts, rows, columns // 32), generator=make, dtype=torch.uint8
        )
        return Quantized("mxfp4", data, exponents)
    zeros = torch.randint(0, 16, scales.shape, generator=make, dtype=torch.uint8)
    return Quantized("int4", data, scales, zeros)


def number(weight: Quantized, row: int, column: int) -> float:
    """What one number of [N, K] stands for, from the words of the form."""
    if weight.kind in ("int8", "fp8"):
        stored = weight.data[row, column].float().item()
        return stored * weight.scales[row // weight.block_rows, column // weight.group].item()
    byte = int(weight.data[row, column // 2])
    code = byte >> 4 if column % 2 else byte & 15
    group = column // weight.group
    if weight.kind == "mxfp4":
        value = E2M1[code & 7] * (-1 if code & 8 else 1)
        return value * 2.0 ** (int(weight.scales[row, group]) - 127)
    zero = 8 if weight.zeros is None else int(weight.zeros[row, group])
    return (code - zero) * weight.scales[row, group].item()


KINDS = pytest.mark.parametrize("kind", ["int8", "fp8", "int4", "mxfp4"])


@KINDS
def test_numbers_are_what_the_form_says(kind):
    weight = random(kind)
    expected = [[number(weight, row, column) for column in range(K)] for row in range(N)]
    assert weight.shape == (N, K)
    assert torch.allclose(weight.dequantized(), torch.tensor(expected), rtol=1e-6)
    assert torch.equal(weight.dequantized(torch.bfloat16), weight.dequantized().bfloat16())


def test_blocks_of_rows_and_symmetric_zeros():
    blocks = random("fp8", block_rows=3)
    assert (blocks.block_rows, blocks.group) == (3, 32)
    assert torch.allclose(
        blocks.dequantized(),
        blocks.data.float() * blocks.scales.repeat_interleave(3, 0).repeat_interleave(32, 1),
    )
    four = random("int4")
    eights = torch.full_like(four.zeros, 8)
    assert torch.equal(replace(four, zeros=None).dequantized(), replace(four, zeros=eights).dequantized())


@KINDS
def test_experts_are_weights_one_after_another(kind):
    stacked = random(kind, experts=(3,))
    assert stacked.shape == (3, N, K)
    for index in range(3):
        assert torch.equal(stacked.expert(index).dequantized(), stacked.dequantized()[index])


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product(kind, dtype):
    weight, x, bias = random(kind), torch.randn(5, K).to(dtype), torch.randn(N).to(dtype)
    expected = linear(x, weight.dequantized(dtype), bias)
    assert torch.equal(quantized_linear.reference(x, weight, bias), expected)
    assert quantized_linear(x.view(5, 1, K), weight).shape == (5, 1, N)
    assert quantized_linear(x[:0], weight).shape == (0, N)


def test_order_of_columns_is_undone():
    weight, x = random("int4"), torch.randn(5, K)
    order = torch.randperm(K)
    ordered = replace(weight, order=order)
    assert torch.allclose(
        quantized_linear.reference(x, ordered), x[:, order] @ weight.dequantized().T, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_gradients_go_to_x(kind):
    weight = random(kind)
    x = torch.randn(5, K, requires_grad=True)
    out = torch.randn(5, N)
    quantized_linear(x, weight).backward(out)
    assert torch.allclose(x.grad, out @ weight.dequantized(), rtol=1e-5, atol=1e-5)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """By the inverse of the scale in fp32, which says to which side a number half-way between two goes."""
    top = x.abs().amax(-1, keepdim=True)
    return (x * (127 / top)).round().double(), top.double() / 127


@pytest.mark.parametrize("columns", [64, 3 * EXACT_COLUMNS + 32])
def test_int8_activations_are_integer_sums(columns):
    weight = replace(random("int8", columns=columns, group=columns), activations="int8")
    x, bias = torch.randn(7, columns), torch.randn(N)
    numbers, scales = rounded(x)
    expected = (numbers @ weight.data.double().T) * scales * weight.scales[:, 0].double() + bias.double()
    assert torch.allclose(quantized_linear(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-4)
    least = torch.full((2, columns), -128, dtype=torch.int8)
    assert torch.equal(integer_sums(least, least), torch.full((2, 2), columns * 128**2, dtype=torch.int32))


def test_int8_activations_of_rows_that_are_not_numbers():
    weight = replace(random("int8", group=K), activations="int8")
    x = torch.randn(4, K)
    x[1, 3], x[2, 5] = torch.nan, torch.inf
    x[3] = 0
    out = quantized_linear(x, weight)
    assert out[0].isfinite().all()
    assert not out[1].isfinite().any()
    assert not out[2].isfinite().any()
    assert (out[3] == 0).all()


def test_exponents_at_their_ends():
    data = torch.full((1, 16), 0x22, dtype=torch.uint8)
    for code, value in ((0, 2.0**-127), (254, 2.0**127), (127, 1.0)):
        scales = torch.tensor([[code]], dtype=torch.uint8)
        assert (Quantized("mxfp4", data, scales).dequantized() == value).all()
    assert Quantized("mxfp4", data, torch.tensor([[255]], dtype=torch.uint8)).dequantized().isnan().all()


def test_packing_is_undone():
    codes = torch.randint(0, 16, (3, 10), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes)), codes)
    assert pack(torch.tensor([1, 2], dtype=torch.uint8)).item() == 0x21


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "int3"}, "int3"),
        ({"data": torch.zeros(N, K // 2)}, "data of int4"),
        ({"scales": torch.ones(N, 2, dtype=torch.float16)}, "scales of int4"),
        ({"scales": torch.ones(N, 3), "zeros": None}, "evenly"),
        ({"scales": torch.ones(N // 2, 2), "zeros": None}, "one row each"),
        ({"zeros": torch.zeros(N, 1, dtype=torch.uint8)}, "zeros"),
        ({"order": torch.arange(K // 2)}, "order"),
        ({"activations": "int8"}, "int8 activations"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(random("int4"), **change)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@KINDS
def test_on_a_gpu_as_on_a_cpu(kind):
    weight, x = random(kind), torch.randn(5, K)
    there = weight.mapped(lambda tensor: tensor.cuda())
    assert torch.equal(there.dequantized().cpu(), weight.dequantized())
    assert torch.allclose(
        quantized_linear(x.cuda(), there).cpu(), quantized_linear(x, weight), rtol=1e-3, atol=1e-3
    )
