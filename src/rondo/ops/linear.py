"""x @ weight.T + bias."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.dispatch import Op

WIDE_ROWS = 32
"""From this many rows on, converting the weight costs less than multiplying without bf16 instructions."""


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
    """Where the CPU has no bf16 dot product the library emulates one at a third of the fp32 speed.

    Products of two bf16 numbers are exact in fp32, so this is also the more accurate result.
    """
    result: Tensor = _ThroughFp32.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _ThroughFp32(torch.autograd.Function):
    """Keeps the bf16 tensors for backward and widens them again there: no fp32 copy outlives a call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].float()
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            (grad @ weight.float()).to(x.dtype) if for_x else None,
            (rows.T @ inputs.float()).to(weight.dtype) if for_weight else None,
            rows.sum(0).to(weight.dtype) if for_bias else None,
        )


@cache
def cpu_multiplies_bf16() -> bool:
    """Whether it has instructions for it."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return (
        "avx512_bf16" in flags
        or "amx_bf16" in flags
        or "bf16" in flags.split("Features", 1)[-1].split("\n", 1)[0]
    )
