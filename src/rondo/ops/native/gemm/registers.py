"""What `registers.c` measures: products of numbers that are in registers already, by kind of arithmetic."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.ops.native.build.build import library

KINDS = {"fp32": 0, "bf16": 1, "int16": 2, "int8": 3}
"""As C numbers them. Where the CPU has no instructions for a kind it is computed as the kernels do: bf16 in fp32, int8
as int16."""


@dataclass(frozen=True)
class Multiplied:
    """What all threads have multiplied and added up; of each, the sum of a lane, which is of ones (fp32), and the
    seconds that it had a core (fp64)."""

    products: int
    lanes: Tensor
    seconds: Tensor

    @property
    def rate(self) -> float:
        """Products a second, while no thread is without a core."""
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
