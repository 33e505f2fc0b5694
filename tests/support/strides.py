"""Tensors that lie oddly in memory, with the numbers of those that do not."""

import torch
from torch import Tensor


def unaligned(x: Tensor) -> Tensor:
    """One number beyond where memory is aligned."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


def with_gaps(x: Tensor) -> Tensor:
    """Every second number of what is there."""
    return torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2].copy_(x)


def turned(x: Tensor) -> Tensor:
    """Its last dimension lies first."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)
