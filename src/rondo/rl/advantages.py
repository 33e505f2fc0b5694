"""From rewards to per-token advantages and weights: plain arithmetic, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Normalise = Literal["std", "mean"]
Aggregate = Literal["token", "sequence", "constant"]

EPSILON = 1e-4


def group_advantages(rewards: Floats, normalise: Normalise = "std") -> Floats:
    """[P, S] -> [P, S]: each reward beside its group's mean. "std" is GRPO; "mean" is Dr. GRPO, undivided.

    A reward that is NaN (its grader failed) counts neither in the mean nor in the deviation, and gets advantage 0.
    """
    known = ~np.isnan(rewards)
    count = known.sum(1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    centred = np.where(known, rewards - filled.sum(1, keepdims=True) / np.maximum(count, 1), 0.0)
    # The mean of equal numbers is off by a rounding, which the division below would blow up.
    lowest, highest = np.where(known, rewards, np.inf).min(1), np.where(known, rewards, -np.inf).max(1)
    centred[highest <= lowest] = 0.0
    if normalise == "mean":
        return centred
    deviation = np.sqrt((centred**2).sum(1, keepdims=True) / np.maximum(count - 1, 1))
    return np.asarray(centred / (deviation + EPSILON))


def token_weights(lengths: Sequence[int], aggregate: Aggregate = "token", longest: int = 0) -> list[float]:
    """The weight of each of a sample's tokens in a loss that is divided by the number of all tokens.

    "token": all tokens count alike (DAPO). "sequence": all samples count alike, whatever their length (GRPO's paper).
    "constant": samples are divided by `longest`, the most tokens they could have (Dr. GRPO).
    """
    tokens = sum(lengths)
    samples = sum(1 for length in lengths if length)
    if aggregate == "token" or not tokens:
        return [1.0] * len(lengths)
    if aggregate == "constant":
        return [tokens / (len(lengths) * longest)] * len(lengths)
    return [tokens / (samples * length) if length else 0.0 for length in lengths]
