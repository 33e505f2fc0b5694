"""Wake coroutines of this process when an item they wait for arrives."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rondo.control.store.pending import Pending


class Signals:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, set[Pending[None]]] = defaultdict(set)

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
