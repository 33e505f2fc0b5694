"""The compiled product: a row's bits are its own, and those of a compiled step; gradients are torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from rondo import models
from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.compiled import CompiledDecoder
from rondo.ops import ExpertWeights, grouped_experts, linear
from rondo.ops.native.build.build import compiler
from rondo.ops.native.gemm.linear import takes_bf16
from support.threads import threads
from support.tiny import tiny_config

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test the compiled product"
)
TYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not takes_bf16(), reason="this CPU's own bf16 product serves here"),
    ),
]
SHAPES = [(48, 96), (107, 272), (16, 16), (1, 528), (40, 37), (1100, 64)]


def example(rows: int, width: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + width)
    shapes = (rows, inputs), (width, inputs), (width,)
    x, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_rows_bits_are_its_own(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight, bias = example(300, *shape, dtype)
    every = linear(x, weight, bias)
    assert torch.equal(linear(x.view(3, 100, -1), weight, bias), every.view(3, 100, -1))
    for count in (1, 2, 3, 7, 8, 9, 16, 17, 40, 65, 200):
        for way in (1, 2, 3):
            with threads(way):
                assert torch.equal(linear(x[-count:], weight, bias), every[-count:])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_values_and_gradients(dtype: torch.dtype, shape: tuple[int, int], bias: bool) -> None:
    precision = 1e-6 if dtype == torch.float32 else 2**-8
    x, weight, b = example(45, *shape, dtype)
    upstream = torch.randn(45, shape[0], generator=torch.Generator().manual_seed(0)).to(dtype)
    results = []
    for run, to in ((linear, dtype), (linear.reference, torch.float64)):
        leaves = [each.detach().to(to).requires_grad_() for each in ((x, weight, b) if bias else (x, weight))]
        out = run(*leaves)
        out.backward(upstream.to(to))
        results.append(
            [out.detach().double(), *(leaf.grad.double() for leaf in leaves if leaf.grad is not None)]
        )
    assert len(results[0]) == 3 + bias
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).abs().max() <= precision * max(1.0, float(exact.abs().max()))


def test_only_what_is_wanted_gets_a_gradient() -> None:
    x, weight, bias = example(20, 48, 96, torch.float32)
    weight.requires_grad_()
    linear(x, weight, bias).sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    assert bias.grad is None
    x.requires_grad_()
    with torch.no_grad():
        assert not linear(x, weight, bias).requires_grad


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_the_product_of_a_compiled_step(dtype: torch.dtype) -> None:
    shape = {"hidden_size": 272, "intermediate_size": 80, "head_dim": 16, "vocab_size": 107}
    model = models.new(tiny_config(**shape), seed=3).requires_grad_(False).to(dtype)
    compiled = CompiledDecoder.of(model, KVCache(model.attention_specs(), [8], 4, dtype, model.device))
    assert compiled is not None
    assert compiled.can([])
    x = torch.randn(40, 272, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.inference_mode():
        assert torch.equal(compiled.head(x), model.head(x).float())
        assert torch.equal(compiled.head(x[5:6]), model.head(x).float()[5:6])


def test_an_experts_rows_do_not_know_how_many_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    gate, up, down = (torch.randn(4, *shape, generator=generator) for shape in ((32, 16), (32, 16), (16, 32)))
    parts = ExpertWeights(gate, up, down)
    x, weights = torch.randn(50, 16, generator=generator), torch.rand(50, 2, generator=generator)
    experts = torch.randint(0, 4, (50, 2), generator=generator)
    every = grouped_experts(x, weights, experts, parts, "silu")
    for row in range(50):
        alone = slice(row, row + 1)
        assert torch.equal(
            grouped_experts(x[alone], weights[alone], experts[alone], parts, "silu"), every[alone]
        )


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32)])
def test_no_rows(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, requires_grad=True)
    weight = torch.randn(48, 32, requires_grad=True)
    linear(x, weight).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_no_inputs() -> None:
    bias = torch.arange(3.0)
    assert torch.equal(linear(torch.ones(2, 0), torch.ones(3, 0), bias), bias.expand(2, 3))


def test_who_looks_on_sees_what_torch_shows() -> None:
    """Autocast rounds, and forward mode has a tangent."""
    x, weight, _ = example(4, 8, 16, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(linear(forward_ad.make_dual(x, torch.ones_like(x)), weight)).tangent
    torch.testing.assert_close(tangent, linear(torch.ones_like(x), weight))


def test_a_weight_that_is_elsewhere_is_torchs_to_judge() -> None:
    x, weight = torch.ones(2, 16), torch.ones(3, 16, device="meta")
    assert linear(x, weight).device == F.linear(x, weight).device


def test_weights_that_do_not_lie_in_rows() -> None:
    x, weight, _ = example(20, 96, 48, torch.float32)
    assert torch.equal(
        linear(x[:, :32], weight[:, :32]), linear(x[:, :32].contiguous(), weight[:, :32].contiguous())
    )
    assert torch.allclose(linear(x, weight.T.contiguous().T), x @ weight.T, atol=1e-4)


@pytest.mark.parametrize("width", [48, 1100])
def test_a_bias_with_gaps(width: int) -> None:
    x, weight, _ = example(20, width, 48, torch.float32)
    bias = torch.randn(2 * width)[::2]
    assert torch.equal(linear(x, weight, bias), linear(x, weight, bias.contiguous()))


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [((2, 32), (4, 64), None), ((2, 64), (4, 32), None), ((2, 32), (4, 32), 2), ((3, 48), (4, 32), 4)],
)
def test_what_does_not_fit_is_refused_as_by_torch(
    x: tuple[int, int], weight: tuple[int, int], bias: int | None
) -> None:
    given = torch.ones(x), torch.ones(weight), None if bias is None else torch.ones(bias)
    with pytest.raises(RuntimeError):
        torch.nn.functional.linear(*given)
    with pytest.raises(RuntimeError):
        linear(*given)
