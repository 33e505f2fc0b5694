"""When a process that ended is started again: at once, then after longer and longer, and not without end."""

from __future__ import annotations

from collections import deque

WITHIN_SECONDS = 600
"""Of starts: more than those allowed in this time mean that it will not do."""
LONGEST_SECONDS = 30.0


class Restarts:
    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._starts: deque[float] = deque()

    def next(self, now: float) -> float | None:
        """How long to wait before the next start; None where there is none."""
        while self._starts and now - self._starts[0] > WITHIN_SECONDS:
            self._starts.popleft()
        if len(self._starts) >= self._allowed:
            return None
        self._starts.append(now)
        earlier = len(self._starts) - 1
        return min(2.0 ** (earlier - 1), LONGEST_SECONDS) if earlier else 0.0
