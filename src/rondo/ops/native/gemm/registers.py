"""Measurement of `registers.c`: products of numbers in registers, by kind of arithmetic."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.ops.native.build.build import library

KINDS = {"fp32": 0, "bf16": 1, "int16": 2, "int8": 3}
"""Codes of the kinds in C. A kind without CPU instructions is computed as in the kernels: bf16 in fp32, int8 as
int16."""


@dataclass(frozen=True)
class Multiplied:
    """Number of products by all threads; for each thread, the sum of a lane of ones (fp32), and the seconds on a core
    (fp64)."""

    products: int
    lanes: Tensor
    seconds: Tensor

    @property
    def rate(self) -> float:
        """Products a second while every thread has a core."""
        return self.products / float(self.seconds.max())


def multiply(kind: str, turns: int, threads: int) -> Multiplied:
    compiled = library("registers")
    assert compiled is not None
    lanes = torch.empty(threads, dtype=torch.float32, device="cpu")
    seconds = torch.empty(threads, dtype=torch.float64, device="cpu")
    numbers = map(ctypes.c_int64, (KINDS[kind], turns, threads))
    addresses = (ctypes.c_void_p(each.data_ptr()) for each in (lanes, seconds))
    compiled.multiply.restype = ctypes.c_int64
    return Multiplied(compiled.multiply(*numbers, *addresses), lanes, seconds)
