"""When each request is sent: all at once, or at a rate with gaps of a gamma distribution."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start. A burstiness of 1 makes Poisson arrivals, less makes bursts, infinity equal gaps.

    As in vLLM they are scaled so that the last one comes at `count / rate`: the drawn gaps are off by a percent or two,
    which would be a difference between seeds and not between servers.
    """
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(seed)
    if math.isinf(burstiness):
        gaps = [1 / rate] * count
    else:
        gaps = [rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)]
    times = list(accumulate(gaps))
    scale = count / rate / times[-1]
    return [time * scale for time in times]
