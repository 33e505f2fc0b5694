"""Time that nobody can set."""

import time


class Clock:
    """Seconds since the epoch as the machine saw it when this began, and as much later as has really passed: a jump of
    the machine's clock ends no lease."""

    def __init__(self) -> None:
        self._origin = time.time() - time.monotonic()

    def now(self) -> float:
        return self._origin + time.monotonic()
