"""The compiled version of `draw_tokens`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.draw import draw_tokens
from rondo.ops.native.build import library

NUMBERS_FOR_THREADS = 1 << 17
"""Below so many logits, waking another thread costs more than it saves."""


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "temperatures", "draws", "tokens", "weights")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "threads")),
    )


def _can(logits: Tensor, temperatures: Tensor, draws: Tensor) -> bool:
    alike = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (logits, temperatures, draws))
    return alike and library("draw") is not None


@draw_tokens.fast(_can)
def draw_native(logits: Tensor, temperatures: Tensor, draws: Tensor) -> Tensor:
    compiled = library("draw")
    assert compiled is not None
    logits, temperatures, draws = logits.contiguous(), temperatures.contiguous(), draws.contiguous()
    rows, width = logits.shape
    threads = min(torch.get_num_threads(), rows) if logits.numel() > NUMBERS_FOR_THREADS else 1
    tokens = torch.empty(rows, dtype=torch.int64, device="cpu")
    weights = torch.empty(threads, width, dtype=torch.float32, device="cpu")
    tensors = (logits, temperatures, draws, tokens, weights)
    compiled.draw_rows(ctypes.byref(_Args(*(x.data_ptr() for x in tensors), rows, width, threads)))
    return tokens
