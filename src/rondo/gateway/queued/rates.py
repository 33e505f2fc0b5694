"""Sums over the last minute, for rates."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

WINDOW = 60.0
SLOTS = 60


@dataclass
class Sums:
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    flops: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def add(self, other: Sums) -> None:
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.flops += other.flops


class Rates:
    """Results that this gateway received: in a sliding window of a minute, and since its start."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.total = Sums()
        self._slots: deque[tuple[int, Sums]] = deque()

    def add(self, sums: Sums) -> None:
        self.total.add(sums)
        slot = self._slot()
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, Sums()))
        self._slots[-1][1].add(sums)
        self._drop(slot)

    def window(self) -> tuple[Sums, float]:
        """Sums of the window and its length in seconds."""
        self._drop(self._slot())
        sums = Sums()
        for _, each in self._slots:
            sums.add(each)
        return sums, max(1.0, min(WINDOW, time.monotonic() - self.begun))

    def _slot(self) -> int:
        return int(time.monotonic() * SLOTS / WINDOW)

    def _drop(self, slot: int) -> None:
        while self._slots and self._slots[0][0] <= slot - SLOTS:
            self._slots.popleft()
