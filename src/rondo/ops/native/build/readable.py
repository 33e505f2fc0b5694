"""What a kernel may read by its address, and that address."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def readable(x: Tensor, *others: Tensor) -> bool:
    """Whether they are plain tensors of one type on the CPU."""
    return x.is_cpu and all(each.is_cpu for each in others) and unwatched(x, *others)


def unwatched(x: Tensor, *others: Tensor) -> bool:
    """Whether they are plain tensors of one type, and nothing of torch's looks on (a compiler, a transform, forward
    mode), which would see nothing of what a kernel does."""
    return (
        all(type(each) in (Tensor, nn.Parameter) for each in (x, *others))
        and all(each.dtype == x.dtype for each in others)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
