"""Average of the weights over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Ema:
    """Exponential moving average: each step retains the share `decay` of the average. It is in fp32 for weights of any
    type, because a step changes it only slightly. It starts at the weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._average = {name: p.detach().float().clone() for name, p in self._weights.items()}
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self) -> None:
        weights = [p.detach().float() for p in self._weights.values()]
        self._update(list(self._average.values()), weights, 0)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Averages by names of the weights."""
        return self._average

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """Context in which the model's own tensors hold the averages."""
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
