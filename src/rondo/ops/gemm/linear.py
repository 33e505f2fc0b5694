"""Linear layer: x @ weight.T + bias."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.dispatch import Op
from rondo.ops.kept import kept
from rondo.ops.native.build.level import cpu_flags

WIDE_ROWS = 32
"""Number of rows from which converting the weight costs less than multiplying without bf16 instructions."""
BF16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}


@Op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., K] x [N, K] -> [..., N]."""
    return F.linear(x, weight, bias)


def _bf16_is_emulated(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.numel() >= WIDE_ROWS * x.shape[-1]
        and not cpu_multiplies_bf16()
    )


@linear.fast(_bf16_is_emulated)
def _through_fp32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiplies bf16 as fp32, because the CPU has no bf16 dot product and its emulation has a third of the fp32 speed.

    Products of two bf16 numbers are exact in fp32, so this is also the more accurate result.
    """
    result: Tensor = _ThroughFp32.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _ThroughFp32(torch.autograd.Function):
    """Saves the bf16 tensors for backward and widens them again there: no fp32 copy outlives a call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)

        def multiply() -> Tensor:
            return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

        return kept("product", multiply)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return linear_gradients(grads[0], x, weight, ctx.needs_input_grad)


def linear_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The needed gradients of x, weight and bias, summed in fp32: by the CPU's bf16 products if it has them, else in
    fp32."""
    for_x, for_weight, for_bias = needed
    grad = grad.to(multiplied(x.dtype))
    rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    return (
        gradient_of_x(grad, weight) if for_x else None,
        (rows.T @ inputs.to(grad.dtype)).to(weight.dtype) if for_weight else None,
        rows.sum(0, dtype=torch.float32).to(weight.dtype) if for_bias else None,
    )


def gradient_of_x(grad: Tensor, weight: Tensor) -> Tensor:
    """[..., N] x [N, K] -> [..., K] in the weight's dtype."""
    through = multiplied(weight.dtype)
    return (grad.to(through) @ weight.to(through)).to(weight.dtype)


def multiplied(dtype: torch.dtype) -> torch.dtype:
    """The dtype for products on this CPU: fp32 instead of bf16 that the library would emulate."""
    return torch.float32 if dtype == torch.bfloat16 and not cpu_multiplies_bf16() else dtype


def cpu_multiplies_bf16() -> bool:
    """Whether the CPU has bf16 product instructions. Assumed if the system does not list the CPU's flags."""
    flags = cpu_flags()
    return not flags or not flags.isdisjoint(BF16_INSTRUCTIONS)
