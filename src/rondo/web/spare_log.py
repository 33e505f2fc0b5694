"""Log lines that any client can cause, bounded: the same message is logged a few times in a while, then counted."""

from __future__ import annotations

import logging
import time

MOST = 5
SECONDS = 10.0


class Sparing(logging.Filter):
    """Lets the first `MOST` records of each message through in `SECONDS`; the next one that passes names how many did
    not."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        message = str(record.msg)
        begun, count = self._seen.get(message, (now, 0))
        left_out = max(count - MOST, 0)
        if now - begun > SECONDS:
            begun, count = now, 0
        else:
            left_out = 0
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[message] = begun, count + 1
        if left_out:
            record.msg = f"{message} ({left_out} more of these were left out)"
        return count < MOST
