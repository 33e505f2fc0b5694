"""Products in 8 bits beside the same products of what the 8 bits stand for."""

import pytest
import torch
from torch import Tensor

from rondo.ops.gemm.fp8 import GRADIENTS, INPUTS, fp8_linear, quantized

ROWS, IN, OUT = 37, 64, 48
BFLOAT16 = 2.0**-8
"""The result is rounded to 16 bits; its sum in fp32 may be rounded in another order."""


def meant(x: Tensor, kind: torch.dtype, over: int | None) -> Tensor:
    values, scale = quantized(x, kind, over)
    return values.float() * scale


def tensors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    # Rows of very different size, which only a scale of their own serves.
    x = torch.randn(ROWS, IN, generator=draw) * torch.logspace(-3, 3, ROWS)[:, None]
    weight = torch.randn(OUT, IN, generator=draw)
    bias, upstream = torch.randn(OUT, generator=draw), torch.randn(ROWS, OUT, generator=draw)
    leaves = [each.to(dtype).requires_grad_() for each in (x, weight, bias)]
    return leaves[0], leaves[1], leaves[2], upstream.to(dtype)


def close(ours: Tensor, meant: Tensor) -> None:
    torch.testing.assert_close(ours.float(), meant, rtol=BFLOAT16, atol=1e-5 * float(meant.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by_row", [False, True], ids=["tensorwise", "rowwise"])
def test_products_are_those_of_what_is_meant(by_row: bool, dtype: torch.dtype) -> None:
    x, weight, bias, upstream = tensors(dtype)
    of_rows, of_columns = (1, 0) if by_row else (None, None)
    out = fp8_linear(x, weight, None, by_row=by_row)
    out.backward(upstream)
    wide = upstream.float()
    close(out.detach(), meant(x.detach(), INPUTS, of_rows) @ meant(weight.detach(), INPUTS, of_rows).T)
    close(x.grad, meant(wide, GRADIENTS, of_rows) @ meant(weight.detach(), INPUTS, of_columns))
    close(weight.grad, meant(wide.T, GRADIENTS, of_rows) @ meant(x.detach(), INPUTS, of_columns))
    assert torch.equal(fp8_linear(x, weight, bias, by_row=by_row), out + bias)


def test_a_scale_for_each_row_serves_small_rows() -> None:
    x, weight, _, _ = tensors(torch.float32)
    exact = x @ weight.T
    whole, rows = (fp8_linear(x, weight, by_row=by_row) - exact for by_row in (False, True))
    first = exact[0].norm()
    assert whole[0].norm() > 0.5 * first, "next to rows a million times larger nothing is left of it"
    assert rows[0].norm() < 2**-4 * first


def test_zeros_stay_zeros() -> None:
    x = torch.zeros(4, IN, dtype=torch.bfloat16)
    assert not fp8_linear(x, torch.ones(OUT, IN, dtype=torch.bfloat16)).any()


@pytest.mark.parametrize("by_row", [False, True])
def test_no_rows_are_no_error(by_row: bool) -> None:
    """A rank's part of a row may have nothing that is predicted from."""
    x, weight = torch.zeros(0, 32, requires_grad=True), torch.randn(16, 32, requires_grad=True)
    out = fp8_linear(x, weight, None, by_row=by_row)
    assert out.shape == (0, 16)
    out.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
