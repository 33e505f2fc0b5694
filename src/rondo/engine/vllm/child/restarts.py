"""Restart policy of a process: at once, then with growing delays, up to a maximum number of restarts."""

from __future__ import annotations

from collections import deque

WITHIN_SECONDS = 600
"""Time window for the maximum number of starts."""
LONGEST_SECONDS = 30.0


class Restarts:
    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._starts: deque[float] = deque()

    def next(self, now: float) -> float | None:
        """Seconds to wait before the next start; None if the maximum is reached."""
        while self._starts and now - self._starts[0] > WITHIN_SECONDS:
            self._starts.popleft()
        if len(self._starts) >= self._allowed:
            return None
        self._starts.append(now)
        earlier = len(self._starts) - 1
        return min(2.0 ** (earlier - 1), LONGEST_SECONDS) if earlier else 0.0
