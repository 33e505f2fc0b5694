"""Losses and gradients that are not finite, and spikes of the gradient's norm: what is one, and what comes of it."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import RondoError
from rondo.train.config import TrainConfig

WINDOW = 64
FEWEST = 16
"""Norms that must be known before one can be a spike."""


class Diverged(RondoError):
    """Training cannot go on as it is."""


@dataclass
class Faults:
    """All ranks see the same losses and norms, and so come to the same end. Its state goes into checkpoints."""

    config: TrainConfig
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    skipped: int = 0
    """In a row."""
    gone_back: int = 0

    def judge(self, loss: float, norm: float) -> str | None:
        """What is wrong with a step whose gradients are there and not yet used."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        usual = statistics.median(self.norms) if len(self.norms) >= FEWEST else math.inf
        if self.config.spike and norm > self.config.spike * usual:
            return f"the gradient's norm is {norm:.3g}, and was {usual:.3g} in the median"
        self.norms.append(norm)
        self.skipped = 0
        return None

    def goes_back(self, step: int, reason: str) -> bool:
        """Whether to go back to the last checkpoint; otherwise the batch is left out. Raises where enough is enough."""
        do, most = self.config.on_nan, self.config.most_faults
        if do == "skip":
            self.skipped += 1
        else:
            self.gone_back += 1
        if do == "stop" or max(self.skipped, self.gone_back) > most:
            what = {
                "skip": f"{most} batches in a row were left out",
                "roll_back": f"it went back {most} times",
            }
            after = f" after {what[do]}" if do in what else ""
            raise Diverged(
                f"step {step}: {reason}{after}. Lower train.lr or train.clip, look at the data, or let "
                "train.on_nan and train.most_faults take more of it."
            )
        return do == "roll_back"

    def state(self) -> dict[str, Any]:
        return {"norms": list(self.norms), "skipped": self.skipped, "gone_back": self.gone_back}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Going back counts on, even after a checkpoint of before."""
        self.norms = deque(state["norms"], WINDOW)
        self.skipped = state["skipped"]
        self.gone_back = max(self.gone_back, state["gone_back"])
