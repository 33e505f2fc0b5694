"""Where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseTimer:
    """Seconds by phase, added up until they are taken. On a GPU a phase ends when its work is done there."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._phases: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self._device is not None:
            torch.cuda.synchronize(self._device)
        self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - begin

    def take(self) -> dict[str, float]:
        """What has been added up, in the order in which phases began; the next step begins at zero."""
        phases, self._phases = self._phases, {}
        return phases


def named(phases: dict[str, float]) -> dict[str, float]:
    return {f"seconds/{phase}": seconds for phase, seconds in phases.items()}
