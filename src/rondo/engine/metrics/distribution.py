"""Histograms cheap enough for the step's path, with the buckets of vLLM's dashboards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
BETWEEN_TOKENS = (
    *(0.001, 0.0025, 0.005),  # finer than vLLM's: a small model on one machine is that fast
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SAMPLES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
OPERATIONS = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)


def one_two_five(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    bounds, scale = [], 1
    while scale <= most:
        bounds += [scale * digit for digit in (1, 2, 5) if scale * digit <= most]
        scale *= 10
    return tuple(bounds)


class Distribution:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        cumulative, rows = 0, []
        for bound, count in zip([*map(str, map(float, self.bounds)), "+Inf"], self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows
