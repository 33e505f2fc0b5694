"""Dynamic loss scaling: gradients in half precision are scaled up, so that small ones do not underflow.

A step with non-finite gradients is skipped, and the scale halved; after enough finite steps it is doubled. Scales are
powers of two: unscaling is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rondo.parallel.tensor.own_part import local_of

START = 2.0**16
LARGEST = 2.0**24
PATIENCE = 1000
"""Consecutive finite steps after which the scale is doubled."""


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
        """State for checkpoints, which is loaded in place."""
        return {"scale": self._scale, "well": self._well, "skipped": self._skipped}

    @property
    def metrics(self) -> dict[str, float]:
        return {"loss_scale": self.now, "skipped_steps": float(self._skipped)}

    def take_out(self, gradients: Iterable[Tensor]) -> None:
        torch._foreach_mul_([local_of(gradient) for gradient in gradients], 1 / self.now)

    def learn(self, finite: bool) -> None:
        """Adjusts the scale after a step with finite or non-finite gradients."""
        if not finite:
            self._scale.mul_(0.5).clamp_(min=1.0)
            self._skipped.add_(1)
            self._well.zero_()
        elif int(self._well.add_(1)) == self._patience:
            self._scale.mul_(2).clamp_(max=LARGEST)
            self._well.zero_()
