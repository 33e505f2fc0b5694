"""The compiled version of `choose_tokens`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.native.build.build import library
from rondo.ops.native.build.readable import address, readable
from rondo.ops.native.build.room import room
from rondo.ops.vocabulary.draw import choose_tokens

NUMBERS_FOR_THREADS = 1 << 17
"""Number of logits below which waking another thread costs more than it saves."""


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "temperatures", "draws", "scales", "masks")),
        *((name, ctypes.c_void_p) for name in ("tokens", "logprobs", "room")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "threads")),
    )


def _can(
    logits: Tensor,
    temperatures: Tensor,
    draws: Tensor,
    scales: Tensor | None = None,
    masks: Tensor | None = None,
) -> bool:
    given = [logits, temperatures, draws] if scales is None else [logits, temperatures, draws, scales]
    fits = masks is None or (masks.dtype == torch.int32 and readable(masks))
    return logits.dtype == torch.float32 and readable(*given) and fits and library("draw") is not None


@choose_tokens.fast(_can)
def choose_native(
    logits: Tensor,
    temperatures: Tensor,
    draws: Tensor,
    scales: Tensor | None = None,
    masks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    compiled = library("draw")
    assert compiled is not None
    logits, temperatures, draws = logits.contiguous(), temperatures.contiguous(), draws.contiguous()
    rows, width = logits.shape
    threads = min(torch.get_num_threads(), rows) if logits.numel() > NUMBERS_FOR_THREADS else 1
    tokens = torch.empty(rows, dtype=torch.int64, device="cpu")
    memory = room(threads * 2 * width)
    masks = None if masks is None else masks.contiguous()
    logprobs = None
    if scales is not None:
        scales, logprobs = scales.contiguous(), torch.empty(rows, dtype=torch.float32, device="cpu")
    tensors = (logits, temperatures, draws, scales, masks, tokens, logprobs, memory)
    compiled.choose_rows(ctypes.byref(_Args(*map(address, tensors), rows, width, threads)))
    return tokens, logprobs
