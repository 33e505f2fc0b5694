"""The gated activations of the feed-forward layers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.ops.dispatch import Op

SWIGLU_LIMIT = 7.0
SWIGLU_ALPHA = 1.702


@Op
def gated(kind: str, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, for `silu`, `gelu_tanh`, `gelu` and gpt-oss's `clamped_swiglu`."""
    if kind == "silu":
        return F.silu(gate) * up
    if kind == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    if kind == "gelu":
        return F.gelu(gate) * up
    if kind == "clamped_swiglu":
        gate = gate.clamp(max=SWIGLU_LIMIT)
        up = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (up + 1) * (gate * torch.sigmoid(gate * SWIGLU_ALPHA))
    raise ValueError(f"unknown activation {kind!r}")
