"""Matrix products whose rows do not know of each other: the same bits for a row, however many are beside it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rondo.ops.native.build import library
from rondo.ops.native.paged_decode import GIVEN

MULTIPLE = 16
"""What the inner dimension is a multiple of: the longest vector."""
LEAST_WIDTH = 4
TYPES = (torch.float32, torch.bfloat16)


class _Args(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "out", "memory")),
        *((name, ctypes.c_int64) for name in ("rows", "in", "width", "type", "threads")),
    )


def can_multiply(weight: Tensor) -> bool:
    width, inputs = weight.shape
    return (
        weight.device.type == "cpu"
        and weight.dtype in TYPES
        and weight.is_contiguous()
        and inputs % MULTIPLE == 0
        and width >= LEAST_WIDTH
        and library("product") is not None
    )


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [M, K] times the transpose of weight [N, K], of one type, without gradients."""
    compiled = library("product")
    assert compiled is not None
    x = x.float().contiguous()
    out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device="cpu")
    arguments = _Args(
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        None,
        *x.shape,
        weight.shape[0],
        GIVEN[weight.dtype],
        torch.get_num_threads(),
    )
    compiled.product_memory.restype = ctypes.c_int64
    size = compiled.product_memory(ctypes.byref(arguments))
    memory = torch.empty(size, dtype=torch.float32, device="cpu")
    arguments.memory = memory.data_ptr()
    compiled.product_rows(ctypes.byref(arguments))
    return out.to(weight.dtype)
