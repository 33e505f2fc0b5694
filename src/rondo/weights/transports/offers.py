"""The version that a process offers to other hosts, and the version before it while a host still reads that one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rondo.weights.transports.deltas import WeightDelta, delta_between
from rondo.weights.transports.segment import Held

READER_SECONDS = 30.0
"""Time without progress after which a reader's version is released."""


@dataclass(eq=False)
class Offered:
    """A complete version, and the changes since the version before it."""

    held: Held
    delta: WeightDelta | None = None
    readers: dict[str, float] = field(default_factory=dict)
    """Time of each reader's latest progress."""


class Offers:
    """A reader registers with its first request and holds the version until it leaves or makes no progress. At most one
    version beside the current one is held, the oldest: its readers complete even if pushes are faster than they are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._current: Offered | None = None
        self._older: Offered | None = None

    @property
    def held(self) -> Held | None:
        """The current version."""
        return None if self._current is None else self._current.held

    def offer(self, held: Held, deltas: bool = False) -> None:
        """Offers a version instead of the current one."""
        current = self._current
        delta = delta_between(current.held.folder, held.folder) if deltas and current is not None else None
        with self._lock:
            self._current = Offered(held, delta)
            self._expire()
            if current is None:
                return
            if current.readers and self._older is None:
                self._older = current
            else:
                current.held.release()

    def find(self, version: str, reader: str = "") -> Offered | None:
        """The offered version of a number or "latest", for a reader that holds it from then on."""
        with self._lock:
            self._expire()
            for each in (self._current, self._older):
                if each is not None and version in ("latest", str(each.held.version)):
                    self._note(each, reader)
                    return each
        return None

    def progress(self, offered: Offered, reader: str) -> None:
        """Extends the time of a reader that is still registered."""
        with self._lock:
            if reader in offered.readers:
                self._note(offered, reader)

    def leave(self, version: str, reader: str) -> None:
        """Ends a reader's hold."""
        with self._lock:
            for each in (self._current, self._older):
                if each is not None and version == str(each.held.version):
                    each.readers.pop(reader, None)
            self._expire()

    def expire(self) -> None:
        """Releases the older version if its readers have made no progress."""
        with self._lock:
            self._expire()

    def close(self) -> None:
        with self._lock:
            for each in (self._current, self._older):
                if each is not None:
                    each.held.release()
            self._current = self._older = None

    def _note(self, offered: Offered, reader: str) -> None:
        if reader:
            offered.readers[reader] = self._clock()

    def _expire(self) -> None:
        limit = self._clock() - READER_SECONDS
        for each in (self._current, self._older):
            if each is not None:
                each.readers = {name: at for name, at in each.readers.items() if at > limit}
        if self._older is not None and not self._older.readers:
            self._older.held.release()
            self._older = None
