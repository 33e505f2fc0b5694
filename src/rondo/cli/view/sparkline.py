"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "?"


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` bars, each the mean of as many values, between the least and the most of them."""
    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)] if width else [0]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(mean, low, high) for mean in means)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NOT_FINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
