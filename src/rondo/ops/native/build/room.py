"""Scratch memory of the kernels, which each thread reuses across calls."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

KEPT = 1 << 24
"""Maximum numbers cached by a thread, 64 MiB. For a larger call, allocation is a small part of the time."""


class _Own(threading.local):
    memory = torch.empty(0)


_own = _Own()


def room(floats: int) -> Tensor:
    """At least `floats` uninitialized fp32 numbers, valid until this thread's next call."""
    if floats > KEPT:
        return _made(floats)
    if _own.memory.numel() < floats:
        _own.memory = _made(floats)
    return _own.memory


def _made(floats: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.empty(floats, dtype=torch.float32, device="cpu")
