"""Wake coroutines of this process when an item they wait for arrives."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rondo.control.store.pending import Pending

T = TypeVar("T")
FIRST_POLL, LONGEST_POLL = 0.05, 1.0
"""Seconds between looks for changes by another process; a change by this process wakes at once."""


async def until_changed(changed: Pending[None], seconds: float) -> None:
    """Waits for the signal, at most `seconds`.

    Not with `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives together with the signal.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(changed)


class Signals:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Pending[None]]] = defaultdict(set)
        self.closing = False
        """Long polls end at once."""

    @contextmanager
    def waiting(self, names: Iterable[str]) -> Iterator[Pending[None]]:
        """A future that completes with the first signal for one of the names after this call."""
        waiter: Pending[None] = Pending()
        names = list(names)
        with self._lock:
            for name in names:
                self._waiters[name].add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                for name in names:
                    self._waiters[name].discard(waiter)
                    if not self._waiters[name]:
                        del self._waiters[name]

    async def poll(
        self, names: Iterable[str], seconds: float, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """The first result of `look` that is not None, within `seconds` (long polling): it is repeated after a signal
        for one of the names, and at intervals."""
        names, end, pause = list(names), time.monotonic() + seconds, FIRST_POLL
        while True:
            with self.waiting(names) as changed:
                found = await look()
                left = end - time.monotonic()
                if found is not None or left <= 0 or self.closing:
                    return found
                await until_changed(changed, min(pause, left))
            pause = min(2 * pause, LONGEST_POLL)

    def close(self) -> None:
        """Ends long polls."""
        self.closing = True
        self.notify_all()

    def notify(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                for waiter in self._waiters.get(name, ()):
                    if not waiter.done() and waiter.set_running_or_notify_cancel():
                        waiter.set_result(None)

    def notify_all(self) -> None:
        with self._lock:
            names = list(self._waiters)
        self.notify(names)
