"""RMSNorm and the linear operation, against fp64."""

import pytest
import torch
from torch import Tensor

from rondo.ops import linear, rms_norm
from rondo.ops import linear as linear_op

linear_module = __import__("rondo.ops.gemm.linear", fromlist=["linear"])


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2)])
def test_rms_norm(dtype: torch.dtype, precision: float, offset: float) -> None:
    x, weight = (3 * torch.randn(7, 64)).to(dtype), torch.randn(64).to(dtype)
    out = rms_norm(x, weight, 1e-6, offset)
    assert out.dtype == dtype
    assert torch.allclose(
        out.double(), normed(x, weight.double() + offset, 1e-6), rtol=precision, atol=precision
    )


def test_rms_norm_over_heads_and_of_zeros() -> None:
    x, weight = torch.randn(5, 4, 16), torch.randn(16)
    assert torch.allclose(rms_norm(x, weight, 1e-5).double(), normed(x, weight, 1e-5), atol=1e-5)
    assert torch.equal(rms_norm(torch.zeros(2, 16), weight, 1e-5), torch.zeros(2, 16))


def test_rms_norm_of_large_half_precision_numbers() -> None:
    """Their squares overflow fp16; the statistics are kept in fp32."""
    x = torch.full((1, 32), 1000.0, dtype=torch.float16)
    assert torch.allclose(rms_norm(x, torch.ones(32, dtype=torch.float16), 1e-6), torch.ones(1, 32).half())


@pytest.fixture
def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "cpu_multiplies_bf16", lambda: False)


def bf16_case(rows: int, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    x, weight = torch.randn(rows, 96), torch.randn(48, 96)
    return x.bfloat16(), weight.bfloat16(), torch.randn(48).bfloat16() if bias else None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("without_bf16")
def test_bf16_through_fp32_is_at_least_as_exact(bias: bool) -> None:
    x, weight, b = bf16_case(64, bias)
    exact = x.double() @ weight.double().T + (0 if b is None else b.double())
    with torch.no_grad():
        fast, reference = linear(x, weight, b), linear.reference(x, weight, b)
    assert fast.dtype == torch.bfloat16
    assert (fast.double() - exact).abs().mean() <= 1.01 * (reference.double() - exact).abs().mean()
    rounded_twice = fast != exact.to(torch.bfloat16)
    assert rounded_twice.float().mean() < 0.01, "fp32 sums almost always round to the nearest bf16"


@pytest.mark.usefixtures("without_bf16")
def test_when_bf16_goes_through_fp32() -> None:
    takes = linear_module._bf16_is_emulated
    x, weight, _ = bf16_case(64, False)
    with torch.no_grad():
        assert takes(x, weight)
        assert takes(x.view(8, 8, 96), weight)
        assert not takes(x[:8], weight), "few rows do not pay for converting the weight"
        assert not takes(x.float(), weight.float())
    assert takes(x, weight), "training takes the same numeric path"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("without_bf16")
def test_gradients_through_fp32(bias: bool) -> None:
    x, weight, b = bf16_case(64, bias)
    upstream = torch.randn(64, 48).bfloat16()
    results = []
    for run, dtype in ((linear, torch.bfloat16), (linear.reference, torch.float64)):
        leaves = [None if t is None else t.detach().to(dtype).requires_grad_() for t in (x, weight, b)]
        run(*leaves).backward(upstream.to(dtype))
        results.append([leaf.grad.double() for leaf in leaves if leaf is not None and leaf.grad is not None])
    assert len(results[0]) == 2 + bias
    for ours, exact in zip(*results, strict=True):
        assert (ours - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("shape", [(5, 96), (2, 5, 96), (0, 96)])
def test_shapes_and_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, requires_grad=True)
    weight, bias = torch.randn(48, 96, requires_grad=True), torch.randn(48, requires_grad=True)
    out = linear_op(x, weight, bias)
    assert out.shape == (*shape[:-1], 48)
    out.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, weight.detach().sum(0).expand_as(x), atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "does"),
    [("avx2 avx512f", False), ("avx512_bf16", True), ("amx_bf16", True), ("asimd bf16", True), ("", True)],
)
def test_whether_a_cpu_multiplies_bf16(monkeypatch: pytest.MonkeyPatch, flags: str, does: bool) -> None:
    monkeypatch.setattr(linear_module, "cpu_flags", lambda: frozenset(flags.split()))
    assert linear_module.cpu_multiplies_bf16() == does
