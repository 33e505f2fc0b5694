"""PostgreSQL by psycopg 3: for a second gateway, or a second host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import ConfigError, MissingExtra, StorageError, Unavailable
from rondo.control.store.clock import Clock, DatabaseClock
from rondo.control.store.migrate import upgrade
from rondo.control.store.pending import Pending, settle

Work = Callable[[sa.Connection], Any]

WRITERS = 8
TRIES = 5
RETRIED = ("40001", "40P01", "23505")
"""Serialization failure, deadlock, and two callers that inserted the same unique key at once."""
FULL = ("53100",)
LOCK_SECONDS = 10
IDLE_SECONDS = 60
CONNECT_SECONDS = 10
LOST_SECONDS = 15
"""Without a sign of the database's host for so long, its connections are closed."""
READ_ONLY = "-c default_transaction_read_only=on"


class Postgres:
    clock: Clock = DatabaseClock()

    def __init__(self, url: str, readers: int) -> None:
        parsed = _parsed(url)
        self.name = parsed.set(drivername="postgresql").render_as_string(hide_password=True)
        self._engine = _engine(parsed, WRITERS, "READ COMMITTED")
        self._readers = _engine(parsed, readers, "REPEATABLE READ", READ_ONLY)
        try:
            with self.explained(), self._engine.begin() as db:
                self.before = upgrade(db, self.name)
        except BaseException:
            self._engine.dispose()
            raise
        self._writing = ThreadPoolExecutor(WRITERS, thread_name_prefix="store-writer")

    def submit(self, work: Work, pending: Pending[Any]) -> None:
        self._writing.submit(settle, pending, lambda: self._write(work))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self.explained(), self._readers.begin() as db:
            yield db

    def close(self) -> None:
        self._writing.shutdown()
        self._readers.dispose()
        self._engine.dispose()

    def _write(self, work: Work) -> Any:
        for left in reversed(range(TRIES)):
            try:
                with self.explained(), self._engine.begin() as db:
                    return work(db)
            except sa.exc.DBAPIError as error:
                if not left or _state(error) not in RETRIED:
                    raise
            time.sleep(random.uniform(0, 0.01))
        raise AssertionError

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise PostgreSQL's errors as ours, with the remedy."""
        try:
            yield
        except sa.exc.TimeoutError as error:
            raise Unavailable(f"No connection to {self.name} is free: try again later.") from error
        except sa.exc.DBAPIError as error:
            state, first = _state(error), str(error.orig).strip().partition("\n")[0]
            if state in FULL:
                raise StorageError(
                    f"{self.name} cannot be written ({first}): make room on its disk"
                ) from error
            if state == "55P03":
                raise Unavailable(
                    f"Rows of {self.name} have been locked by another session for {LOCK_SECONDS} s: try again, and "
                    "end the session that holds the lock (see pg_locks)"
                ) from error
            if state.startswith(("08", "57P", "53")) or (
                not state and isinstance(error, sa.exc.OperationalError)
            ):
                raise Unavailable(
                    f"{self.name} is not reachable ({first}): start PostgreSQL, or correct RONDO_STORE_URL"
                ) from error
            raise


def _state(error: sa.exc.DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ConfigError(f"RONDO_STORE_URL is not a URL: {error}", param="RONDO_STORE_URL") from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise ConfigError(
            f"RONDO_STORE_URL names {parsed.get_backend_name()}: use postgresql://USER@HOST/DATABASE, or "
            "sqlite:///PATH, or leave it out for RONDO_HOME/rondo.db",
            param="RONDO_STORE_URL",
        )
    return parsed.set(drivername="postgresql+psycopg")


def _engine(url: sa.URL, connections: int, isolation: Any, *options: str) -> sa.Engine:
    limits = (
        f"-c lock_timeout={LOCK_SECONDS}s -c idle_in_transaction_session_timeout={IDLE_SECONDS}s "
        "-c synchronous_commit=on"
    )
    arguments = {
        "options": " ".join((limits, *options)),
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": LOST_SECONDS * 1000,
        "keepalives_idle": LOST_SECONDS,
    }
    try:
        return sa.create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=60,
            pool_pre_ping=True,
            isolation_level=isolation,
            connect_args={name: value for name, value in arguments.items() if name not in url.query},
        )
    except ModuleNotFoundError as error:
        raise MissingExtra("psycopg", "postgres") from error
