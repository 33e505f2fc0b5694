"""Limits of this machine with the current threads: memory bandwidth and arithmetic peak."""

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
"""Length of each chain of products, about 0.4 ms: short enough for many rounds without preemption."""


@dataclass(frozen=True)
class HardwareLimits:
    """Bytes read and operations computed in a second, by kind of number: fp32, bf16, 16-bit or 8-bit integers.

    A multiplication and an addition count as two operations.
    """

    read: float
    flops: dict[str, float]

    def rate(self, arithmetic: str) -> float:
        """Operations a second for a kind, or for the same numbers converted to fp32, whichever is higher."""
        return max(rate for name, rate in self.flops.items() if name in ("fp32", arithmetic))

    def seconds(self, read: float, flops: float, arithmetic: str) -> float:
        """Minimum seconds to read `read` bytes and compute `flops` operations concurrently."""
        return max(read / self.read, flops / self.rate(arithmetic))


def measure_limits(budget: float) -> HardwareLimits:
    """Measures within about `budget` seconds: sums over memory larger than the caches, and products in registers."""
    numbers = torch.ones(1 << 26)
    read = numbers.numel() * 4 / _fastest(numbers.sum, budget / 3)
    kinds = [kind for kind in KINDS if kind in BY_TORCH or library("registers") is not None]
    return HardwareLimits(read, {kind: measure_flops(kind, budget * 2 / 3 / len(kinds)) for kind in kinds})


def measure_flops(kind: str, budget: float) -> float:
    """Operations a second of one kind; without a compiled kernel for it, from a large torch product."""
    if library("registers") is None or (kind == "bf16" and not takes_bf16()):
        return _product_rate(BY_TORCH[kind], budget)
    threads, best, end = torch.get_num_threads(), 0.0, time.perf_counter() + budget
    while best == 0 or time.perf_counter() < end:
        best = max(best, 2 * multiply(kind, TURNS, threads).rate)
    return best


def _product_rate(dtype: torch.dtype, budget: float) -> float:
    """Rate of as large a product as the budget permits: some dtypes are hundreds of times slower than others."""
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
