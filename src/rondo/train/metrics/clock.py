"""Durations of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseTimer:
    """Seconds by phase, accumulated until `take`. On a GPU a phase ends once its work on the device is complete."""

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
        """Returns the accumulated seconds, in the order of the phases' first start, and resets them."""
        phases, self._phases = self._phases, {}
        return phases


def named(phases: dict[str, float]) -> dict[str, float]:
    return {f"seconds/{phase}": seconds for phase, seconds in phases.items()}
