"""The store: transactions on SQLite or PostgreSQL, for coroutines (`await`) and for threads (`.result()`).

`write` and `read` take a function of a connection. They return at once; the result arrives after the commit, when the
disk has the data. A function may run more than once (after a deadlock on PostgreSQL) and must have no other effect.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from rondo.base.errors import Unavailable
from rondo.base.storage.home import home
from rondo.control.store import duty
from rondo.control.store.clock import Clock
from rondo.control.store.pending import Pending, settle
from rondo.control.store.signals import Signals

T = TypeVar("T")
Work = Callable[[sa.Connection], Any]

READERS = 4
BACKGROUND = 8
WAITING = 20_000
"""Calls without a result, above which further ones are refused."""


class Database(Protocol):
    """One of `sqlite.py` and `postgres.py`."""

    name: str
    """For messages: the file, or the URL without its password."""
    clock: Clock
    before: str | None
    """The revision of the tables when the store was opened; None for an empty store."""

    def submit(self, work: Work, pending: Pending[Any]) -> None:
        """Runs `work` in a transaction, and completes `pending` after the commit."""

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """A read-only transaction on a snapshot, with a connection of the readers' pool."""

    def close(self) -> None:
        """Finishes submitted transactions first."""


class Store:
    def __init__(self, place: Path | str | None = None) -> None:
        """Opens a SQLite file or a PostgreSQL URL (by default RONDO_STORE_URL, else RONDO_HOME/rondo.db), creates
        missing tables and applies missing migrations. Blocks; several processes may open the same store."""
        self.place = place_of(place)
        self.database = _open(self.place, READERS)
        self.signals = Signals()
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._here = threading.local()
        self._background = ThreadPoolExecutor(
            BACKGROUND, thread_name_prefix="store-background", initializer=self._mark
        )
        self._lock = threading.Lock()
        self._closed = False
        self._waiting = 0

    @property
    def name(self) -> str:
        return self.database.name

    @property
    def clock(self) -> Clock:
        return self.database.clock

    def write(self, work: Callable[[sa.Connection], T]) -> Pending[T]:
        """One transaction, on the disk when the result arrives. On SQLite concurrent callers share one sync."""
        pending: Pending[T] = Pending()
        with self._lock:
            self._admit()
            self.database.submit(work, pending)
        pending.add_done_callback(self._done)
        return pending

    def read(self, work: Callable[[sa.Connection], T]) -> Pending[T]:
        """One read-only transaction on a snapshot, which no writer delays."""

        def run() -> T:
            with self.database.reading() as db:
                return work(db)

        return self._in(self._reading, run)

    def background(self, function: Callable[[], T]) -> Pending[T]:
        """A function that waits for several transactions of this store, in a thread of a pool. Called in such a thread,
        it runs at once: jobs that waited for other jobs could occupy all threads of the pool."""
        if not getattr(self._here, "background", False):
            return self._in(self._background, function)
        pending: Pending[T] = Pending()
        with self._lock:
            self._admit()
        pending.add_done_callback(self._done)
        settle(pending, function)
        return pending

    def claim(self, name: str, seconds: float) -> Pending[bool]:
        """Whether this store holds the duty of that name, which one process at a time performs."""
        return self.write(lambda db: duty.claim(db, self.clock, name, self.holder, seconds))

    def close(self) -> None:
        """Finishes submitted transactions, then closes each connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.signals.notify_all()
        self._background.shutdown()  # each fails at its next transaction
        self._reading.shutdown()
        self.database.close()

    def _in(self, pool: ThreadPoolExecutor, function: Callable[[], T]) -> Pending[T]:
        pending: Pending[T] = Pending()
        with self._lock:
            self._admit()
            pool.submit(settle, pending, function)
        pending.add_done_callback(self._done)
        return pending

    def _mark(self) -> None:
        self._here.background = True

    def _admit(self) -> None:
        if self._closed:
            raise Unavailable("The store is closed.")
        if self._waiting >= WAITING:
            raise Unavailable(f"{WAITING:,} calls wait for {self.name} already: try again later.")
        self._waiting += 1

    def _done(self, pending: object) -> None:
        with self._lock:
            self._waiting -= 1


def place_of(place: Path | str | None) -> Path | str:
    """A path, or the URL of a PostgreSQL database."""
    chosen = place or os.environ.get("RONDO_STORE_URL") or home() / "rondo.db"
    if isinstance(chosen, str) and chosen.startswith("sqlite:///"):
        return Path(chosen.removeprefix("sqlite:///"))
    if isinstance(chosen, str) and "://" not in chosen:
        return Path(chosen)
    return chosen


def _open(place: Path | str, readers: int) -> Database:
    if isinstance(place, Path):
        from rondo.control.store.sqlite import Sqlite

        return Sqlite(place, readers)
    from rondo.control.store.postgres import Postgres

    return Postgres(place, readers)
