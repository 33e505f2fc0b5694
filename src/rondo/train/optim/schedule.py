"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["cosine", "linear", "constant", "wsd"]

WSD_DECAY_SHARE = 0.2
"""Share of training steps, at the end, in which warmup-stable-decay reduces the learning rate."""


def learning_rate(
    step: int, *, lr: float, warmup: int, steps: int, decay: Decay, lr_end: float = 0.0
) -> float:
    """Learning rate of step 0, 1, ... of `steps`: linear warm-up to `lr`, then decay to `lr_end` times `lr`."""
    if step < warmup:
        return lr * (step + 1) / warmup
    begin = max(warmup, steps - round(steps * WSD_DECAY_SHARE)) if decay == "wsd" else warmup
    progress = min(max((step - begin) / max(steps - begin, 1), 0.0), 1.0)
    if decay == "constant":
        return lr
    share = 0.5 * (1 + math.cos(math.pi * progress)) if decay == "cosine" else 1 - progress
    return lr * (lr_end + (1 - lr_end) * share)
