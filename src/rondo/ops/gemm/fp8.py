"""x @ weight.T in 8-bit floats with dynamic scales: e4m3 for inputs and weights, e5m2 for gradients.

Products accumulate in fp32. There is one scale a tensor, or one for each row of the left and each column of the right
factor. Quantized tensors are not stored: the backward pass saves the original tensors, and quantizes them along the
axis that it sums over.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rondo.ops.kept import kept

MULTIPLE = 16
"""Required multiple of the summed dimension and of the result's columns (cuBLAS)."""
INPUTS, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
TINY = 1e-12


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, by_row: bool = False) -> Tensor:
    """[..., K] x [N, K] -> [..., N] in the dtype of x, bf16 or fp32. K and N are multiples of 16."""
    result: Tensor = _Fp8Linear.apply(x, weight, bias, by_row)  # type: ignore[no-untyped-call]
    return result


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by_row: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.by_row, ctx.biased = by_row, bias is not None

        def multiply() -> Tensor:
            out = product(x.reshape(-1, x.shape[-1]), weight.T, INPUTS, by_row=by_row)
            return (out if bias is None else out + bias).view(*x.shape[:-1], weight.shape[0])

        return kept("product", multiply)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        rows, inputs = grads[0].reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
        of_x = product(rows, weight, GRADIENTS, by_row=ctx.by_row).view_as(x) if for_x else None
        of_weight = product(rows.T, inputs, GRADIENTS, by_row=ctx.by_row) if for_weight else None
        of_bias = rows.sum(0, dtype=torch.float32).to(rows.dtype) if for_bias else None
        return of_x, of_weight, of_bias, None


def product(left: Tensor, right: Tensor, left_type: torch.dtype, *, by_row: bool) -> Tensor:
    """left [M, K] x right [K, N] -> [M, N] in left's dtype."""
    if 0 in left.shape or 0 in right.shape:
        return left.new_zeros(left.shape[0], right.shape[1])
    more = -left.shape[1] % MULTIPLE
    if more:  # a weight's gradient sums over tokens
        left, right = F.pad(left, (0, more)), F.pad(right, (0, 0, 0, more))
    a, of_a = quantized(left, left_type, 1 if by_row else None)
    b, of_b = quantized(right, INPUTS, 0 if by_row else None)
    # `_scaled_mm` requires the right factor in column-major order.
    columns = b.T.contiguous().T
    out: Tensor = torch._scaled_mm(a, columns, scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16)
    return out.to(left.dtype)


def quantized(x: Tensor, kind: torch.dtype, over: int | None) -> tuple[Tensor, Tensor]:
    """x in 8 bits, and its scale: one number, or one for each line of the matrix along axis `over`."""
    x = x.float()
    largest = x.abs().amax() if over is None else x.abs().amax(over, keepdim=True)
    scale = largest.clamp(min=TINY) / torch.finfo(kind).max
    return (x / scale).to(kind).contiguous(), scale
