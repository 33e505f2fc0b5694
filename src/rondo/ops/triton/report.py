"""Operations with kernels on a CUDA device, for `rondo doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rondo.ops.attention.chunks import chunk_attention
from rondo.ops.attention.paged import paged_decode
from rondo.ops.dispatch import Op, references_only
from rondo.ops.gemm.linear import linear
from rondo.ops.gemm.quantized import quantized_linear
from rondo.ops.pointwise.activation import gated
from rondo.ops.pointwise.norm import add_rms_norm, rms_norm
from rondo.ops.pointwise.rope import rotate
from rondo.ops.triton.at_hand import missing, version
from rondo.ops.vocabulary.draw import choose_tokens
from rondo.ops.vocabulary.logprobs import row_logprobs

OPERATIONS: dict[str, Op[..., Any]] = {
    "linear": linear,
    "quantized linear": quantized_linear,
    "rms norm": rms_norm,
    "rms norm of a sum": add_rms_norm,
    "gated activation": gated,
    "rotation": rotate,
    "paged decode": paged_decode,
    "paged prefill": chunk_attention,
    "log-probabilities": row_logprobs,
    "draw a token": choose_tokens,
}


@dataclass(frozen=True)
class OnCuda:
    """CUDA support: `device` is None without one, and `why` is the reason for missing kernels."""

    device: str | None
    version: str | None
    why: str | None
    kernels: list[str]
    plain: list[str]


def on_cuda() -> OnCuda:
    why = "RONDO_OPS=reference" if references_only() else missing()
    kernels = [] if why else [name for name, op in OPERATIONS.items() if _has_kernel(op)]
    plain = [name for name in OPERATIONS if name not in kernels]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return OnCuda(device, None if why else version(), why, kernels, plain)


def _has_kernel(op: Op[..., Any]) -> bool:
    return any(version.__module__.startswith("rondo.ops.triton.") for version in op.fast_versions)
