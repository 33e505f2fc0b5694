"""Non-finite losses and gradients, and spikes of the gradient norm: detection and reaction."""

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
"""Number of norms required before one can count as a spike."""


class Diverged(RondoError):
    """Training cannot continue."""


@dataclass
class Faults:
    """Fault detection. All ranks have equal losses and norms, so they decide alike. Checkpoints contain its state."""

    config: TrainConfig
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    skipped: int = 0
    """Number of consecutive skipped batches."""
    gone_back: int = 0

    def judge(self, loss: float, norm: float) -> str | None:
        """Reason to reject a step, before its gradients are used; None if the step is accepted."""
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
        """Whether to roll back to the last checkpoint; otherwise the batch is skipped. Raises after too many faults."""
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
        """Restores the state. The count of roll-backs does not decrease, even if the checkpoint is older."""
        self.norms = deque(state["norms"], WINDOW)
        self.skipped = state["skipped"]
        self.gone_back = max(self.gone_back, state["gone_back"])
