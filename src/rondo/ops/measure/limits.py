"""What this machine gives the threads at hand: bytes read and numbers multiplied, a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from rondo.ops.native.build.build import library
from rondo.ops.native.gemm.linear import takes_bf16
from rondo.ops.native.gemm.registers import KINDS, multiply

BY_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}
TURNS = 100_000
"""Of each chain of products, some 0.4 ms: so short that many rounds have a core for themselves."""


@dataclass(frozen=True)
class HardwareLimits:
    """Bytes a second read, and operations a second by what is multiplied: numbers in fp32 or bf16, of 16 bits, or of 8.

    A multiplication and an addition are two operations."""

    read: float
    flops: dict[str, float]

    def rate(self, arithmetic: str) -> float:
        """Operations a second, of such numbers or of floats made of them, whichever are more."""
        return max(rate for name, rate in self.flops.items() if name in ("fp32", arithmetic))

    def seconds(self, read: float, flops: float, arithmetic: str) -> float:
        """In which so many bytes could be read and so many operations computed, side by side."""
        return max(read / self.read, flops / self.rate(arithmetic))


def measure_limits(budget: float) -> HardwareLimits:
    """Within about `budget` seconds: sums over what no cache holds, and products of numbers in registers."""
    numbers = torch.ones(1 << 26)
    read = numbers.numel() * 4 / _fastest(numbers.sum, budget / 3)
    kinds = [kind for kind in KINDS if kind in BY_TORCH or library("registers") is not None]
    return HardwareLimits(read, {kind: measure_flops(kind, budget * 2 / 3 / len(kinds)) for kind in kinds})


def measure_flops(kind: str, budget: float) -> float:
    """Operations a second of one kind. Where kernels of ours do not multiply, of a large product of torch's."""
    if library("registers") is None or (kind == "bf16" and not takes_bf16()):
        return _product_rate(BY_TORCH[kind], budget)
    threads, best, end = torch.get_num_threads(), 0.0, time.perf_counter() + budget
    while best == 0 or time.perf_counter() < end:
        best = max(best, 2 * multiply(kind, TURNS, threads).rate)
    return best


def _product_rate(dtype: torch.dtype, budget: float) -> float:
    """Of as large a product as the budget has room for: some types are hundreds of times slower than others."""
    size, seconds = 128, 0.0
    while size < 2048 and seconds * 8 < budget / 10:
        size *= 2
        a = torch.ones(size, size, dtype=dtype)
        seconds = _fastest(lambda a=a: F.linear(a, a), 0.0)  # type: ignore[misc]
    return 2 * size**3 / _fastest(lambda: F.linear(a, a), budget / 2)


def _fastest(action: Callable[[], Any], budget: float) -> float:
    action()
    best, end = float("inf"), time.perf_counter() + budget
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best
