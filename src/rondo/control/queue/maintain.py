"""Sweeping and pruning, by one process at a time however many have the store open."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Swept

DUTY = "queue maintenance"
DUTY_SECONDS = 15.0
"""After the process that maintains the queue vanished, another takes over within this time."""


@dataclass(frozen=True)
class Maintained:
    swept: Swept
    pruned: int


class Maintenance:
    def __init__(self, queue: Queue, leases: Leases, seconds: float = DUTY_SECONDS) -> None:
        self.queue, self.leases, self.seconds = queue, leases, seconds
        self._prune_at = 0.0

    async def run(self) -> Maintained | None:
        """One round, for a loop with a period of at most a third of `seconds`. None if another process has the duty."""
        if not await self.queue.store.claim(DUTY, self.seconds):
            return None
        swept, pruned = await self.leases.sweep(), 0
        if time.monotonic() >= self._prune_at:
            pruned = await self.queue.prune()
            self._prune_at = time.monotonic() + self.queue.config.prune_every
        return Maintained(swept, pruned)
