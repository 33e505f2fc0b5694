"""x @ weight.T + bias."""

from functools import cache
from pathlib import Path

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
        and not torch.is_grad_enabled()
        and not _cpu_multiplies_bf16()
    )


@linear.fast(_bf16_is_emulated)
def _through_fp32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Where the CPU has no bf16 dot product the library emulates one at a third of the fp32 speed.

    Products of two bf16 numbers are exact in fp32, so this is also the more accurate result.
    """
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


@cache
def _cpu_multiplies_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return (
        "avx512_bf16" in flags
        or "amx_bf16" in flags
        or "bf16" in flags.split("Features", 1)[-1].split("\n", 1)[0]
    )
