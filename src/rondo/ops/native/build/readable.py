"""Checks that a kernel may read tensors by address, and the address."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def readable(x: Tensor, *others: Tensor) -> bool:
    """Whether the tensors are plain, of one dtype, and on the CPU."""
    return x.is_cpu and all(each.is_cpu for each in others) and unwatched(x, *others)


def unwatched(x: Tensor, *others: Tensor) -> bool:
    """Whether the tensors are plain and of one dtype, and no torch mechanism traces operations (compiler, functorch
    transform, forward mode), because it would miss the kernel's work."""
    return (
        all(type(each) in (Tensor, nn.Parameter) for each in (x, *others))
        and all(each.dtype == x.dtype for each in others)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
