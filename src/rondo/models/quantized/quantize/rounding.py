"""Rounding of weights to few bits. Scales are rounded to their storage dtype first, so that the weights are rounded for
the same scales that a reader of the file uses."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.ops import Quantized
from rondo.ops.gemm import nf4 as normal_floats
from rondo.ops.gemm.quantized import SYMMETRIC_ZERO, pack

FP8_LARGEST = 448.0
CODES = 15


def int8(weight: Tensor, scale_type: torch.dtype) -> Quantized:
    """Scales each row so that its largest magnitude becomes 127; activations are quantized in the same way."""
    scales = stored(weight.abs().amax(-1, keepdim=True) / 127, scale_type)
    data = (weight / scales).round().clamp(-127, 127).to(torch.int8)
    return Quantized("int8", data, scales, activations="int8")


def fp8(weight: Tensor, scale_type: torch.dtype) -> Quantized:
    scales = stored(weight.abs().amax(-1, keepdim=True) / FP8_LARGEST, scale_type)
    return Quantized(
        "fp8", (weight / scales).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn), scales
    )


def nf4(weight: Tensor) -> Quantized:
    """weight [N, K] in fp32, with K a multiple of 64."""
    groups = weight.unflatten(-1, (-1, normal_floats.GROUP))  # type: ignore[no-untyped-call]
    scales = groups.abs().amax(-1)
    data = pack(normal_floats.codes(groups, scales).flatten(-2))
    codes, nested = normal_floats.nested(scales)
    return Quantized("nf4", data, codes, nested=nested)


def symmetric_grid(groups: Tensor, scale_type: torch.dtype) -> tuple[Tensor, Tensor]:
    """groups [.., g] -> scales and zeros [..]: zero is in the middle of the sixteen numbers."""
    scales = stored(groups.abs().amax(-1) * (2 / CODES), scale_type)
    return scales, torch.full_like(scales, SYMMETRIC_ZERO)


def affine_grid(groups: Tensor, scale_type: torch.dtype) -> tuple[Tensor, Tensor]:
    """groups [.., g] -> scales and zeros [..]: the sixteen numbers span the minimum to the maximum, and include 0."""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = stored((high - low) / CODES, scale_type)
    return scales, (-low / scales).round().clamp(0, CODES)


def codes_of(groups: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, CODES)


def values_of(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return (codes - zeros[..., None]) * scales[..., None]


def int4(codes: Tensor, scales: Tensor, zeros: Tensor) -> Quantized:
    """codes [N, K], scales and zeros [N, K / g]."""
    packed, kept = pack(codes.to(torch.uint8)), zeros.to(torch.uint8)
    symmetric = bool((kept == SYMMETRIC_ZERO).all())
    return Quantized("int4", packed, scales.contiguous(), None if symmetric else kept.contiguous())


def stored(scales: Tensor, scale_type: torch.dtype) -> Tensor:
    """Scales rounded to the storage dtype, as fp32, never 0. Subnormal fp16 numbers are permitted, because rows of
    small weights need them."""
    kind = torch.finfo(scale_type)
    least = max(kind.smallest_normal * kind.eps, torch.finfo(torch.float32).tiny)
    return scales.clamp(min=least).to(scale_type).float()
