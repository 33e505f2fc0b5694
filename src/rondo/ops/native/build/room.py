"""What kernels work in: each thread keeps it from one call to the next."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

KEPT = 1 << 24
"""Numbers that a thread keeps at most, 64 MiB. A call that needs more is long beside the making of them."""


class _Own(threading.local):
    memory = torch.empty(0)


_own = _Own()


def room(floats: int) -> Tensor:
    """So many fp32 numbers or more, of any value, until this thread asks again."""
    if floats > KEPT:
        return _made(floats)
    if _own.memory.numel() < floats:
        _own.memory = _made(floats)
    return _own.memory


def _made(floats: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(floats, dtype=torch.float32, device="cpu")
