"""Dynamic loss scaling: gradients of half precision are made larger, so that small ones are not rounded to nothing.

A step whose gradients are not finite is skipped, and the scale halved; after enough steps without one it is doubled.
Scales are powers of two: taking them out again rounds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

START = 2.0**16
LARGEST = 2.0**24
PATIENCE = 1000
"""Steps in a row that went well before a larger scale is tried."""


class LossScale:
    def __init__(self, start: float = START, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._scale = torch.tensor(start, dtype=torch.float64)
        self._well, self._skipped = (torch.zeros((), dtype=torch.int64) for _ in range(2))

    @property
    def now(self) -> float:
        return float(self._scale)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """What is saved and loaded in place."""
        return {"scale": self._scale, "well": self._well, "skipped": self._skipped}

    @property
    def metrics(self) -> dict[str, float]:
        return {"loss_scale": self.now, "skipped_steps": float(self._skipped)}

    def take_out(self, gradients: Iterable[Tensor]) -> None:
        torch._foreach_mul_(list(gradients), 1 / self.now)

    def learn(self, finite: bool) -> None:
        """From how a step's gradients were."""
        if not finite:
            self._scale.mul_(0.5).clamp_(min=1.0)
            self._skipped.add_(1)
            self._well.zero_()
        elif int(self._well.add_(1)) == self._patience:
            self._scale.mul_(2).clamp_(max=LARGEST)
            self._well.zero_()
