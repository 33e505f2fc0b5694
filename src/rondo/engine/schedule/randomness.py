"""Counter-based randomness: the number for (seed, position) is a hash of the two, so that a request's samples do not
depend on its batch, on prompt chunking or on preemption."""

from __future__ import annotations

from typing import Any

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """SplitMix64's finalizer."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def derive(seed: int, index: int) -> int:
    """Seed of the sample with this index; for index 0 it is `seed`."""
    seed &= MASK
    return seed if index == 0 else mix(seed + index * GOLDEN & MASK)


def uniforms(
    seeds: np.ndarray[Any, np.dtype[np.uint64]], positions: np.ndarray[Any, np.dtype[np.uint64]]
) -> Any:
    """Uniform numbers in [0, 1) as float64, one for each (seed, position); seeds and positions are uint64."""
    with np.errstate(over="ignore"):
        x = _mix(seeds + np.uint64(GOLDEN))
        x = _mix(x ^ _mix(positions * np.uint64(GOLDEN) + np.uint64(1)))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
