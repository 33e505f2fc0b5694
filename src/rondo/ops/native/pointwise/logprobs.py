"""The compiled version of `row_logprobs`, registered with the operation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.native.build.build import library
from rondo.ops.native.build.numbers import GIVEN
from rondo.ops.native.build.readable import address, readable
from rondo.ops.native.build.room import room
from rondo.ops.vocabulary.logprobs import row_logprobs

NUMBERS_FOR_THREADS = 1 << 17
"""Number of logits below which waking another thread costs more than it saves."""


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "tokens", "scales", "out", "room")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "given", "threads")),
    )


def _can(logits: Tensor, tokens: Tensor, scale: Tensor | None) -> bool:
    return (
        logits.dtype in GIVEN
        and tokens.dtype == torch.int64
        and readable(logits)
        and library("logprobs") is not None
    )


@row_logprobs.fast(_can)
def row_logprobs_native(logits: Tensor, tokens: Tensor, scale: Tensor | None) -> Tensor:
    compiled = library("logprobs")
    assert compiled is not None
    rows, width = logits.shape
    logits, tokens = logits.contiguous(), tokens.contiguous()
    scales = None if scale is None else scale.expand(rows, 1).contiguous()
    threads = max(1, min(torch.get_num_threads(), rows)) if logits.numel() > NUMBERS_FOR_THREADS else 1
    out = torch.empty(rows, dtype=torch.float32, device="cpu")
    memory = room(threads * width)
    arguments = _Args(
        logits.data_ptr(),
        tokens.data_ptr(),
        address(scales),
        out.data_ptr(),
        memory.data_ptr(),
        rows,
        width,
        GIVEN[logits.dtype],
        threads,
    )
    if not compiled.logprob_rows(ctypes.byref(arguments)):
        raise IndexError(f"a token is not below {width}, the number of logits in a row, or is below 0")
    return out
