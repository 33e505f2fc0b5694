"""An average of the weights over the steps, beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Exponential: each step keeps `decay` of the average. In fp32, whatever the weights are, for a step changes it by
    little. It begins at the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._average = {name: p.detach().float().clone() for name, p in self._weights.items()}
        self._decay = decay

    @torch.no_grad()
    def step(self) -> None:
        weights = [p.detach().float() for p in self._weights.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, 1 - self._decay)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By the names of the weights they are averages of."""
        return self._average

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """Within the block the model has the average for weights, in its own tensors."""
        kept = {name: p.detach().clone() for name, p in self._weights.items()}
        self._put(self._average)
        try:
            yield
        finally:
            self._put(kept)

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._weights.items():
            parameter.copy_(tensors[name])
