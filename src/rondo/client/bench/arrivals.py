"""Schedule of requests: all at once, or at a rate with gaps of a gamma distribution."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Ramp:
    """A rate that changes from `start` to `end` over the requests, in equal steps or by equal factors."""

    exponential: bool
    start: float
    end: float

    def rate(self, progress: float) -> float:
        if self.exponential:
            return self.start * math.pow(self.end / self.start, progress)
        return self.start + (self.end - self.start) * progress


def ramped_times(count: int, ramp: Ramp, burstiness: float, seed: int) -> list[float]:
    """As `arrival_times`, but with unscaled gaps: there is no single rate to scale them to."""
    rng = random.Random(seed)
    rates = [ramp.rate(i / max(count - 1, 1)) for i in range(count)]
    return list(accumulate(_gap(rate, burstiness, rng) for rate in rates))


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start. A burstiness of 1 makes Poisson arrivals, less makes bursts, infinity equal gaps.

    As in vLLM they are scaled so that the last one comes at `count / rate`: the drawn gaps are off by a percent or two,
    which would be a difference between seeds and not between servers.
    """
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(seed)
    times = list(accumulate(_gap(rate, burstiness, rng) for _ in range(count)))
    scale = count / rate / times[-1]
    return [time * scale for time in times]


def _gap(rate: float, burstiness: float, rng: random.Random) -> float:
    return 1 / rate if math.isinf(burstiness) else rng.gammavariate(burstiness, 1 / (rate * burstiness))
