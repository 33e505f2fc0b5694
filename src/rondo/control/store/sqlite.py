"""SQLite: a write-ahead log that is synced before a caller is answered.

One thread writes. Transactions that arrive while it waits for the disk become one, with a savepoint each: a thousand
callers pay for one sync, and a failure is undone alone.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from rondo.base.errors import StorageError, Unavailable
from rondo.control import migrations
from rondo.control.store.clock import Clock, shared_clock
from rondo.control.store.migrate import revision, upgrade
from rondo.control.store.pending import Pending

Work = Callable[[sa.Connection], Any]

TOGETHER = 256
"""The most callers in one transaction."""
BUSY_SECONDS = 10.0
OPENING = 6
"""Times `BUSY_SECONDS` that opening waits while the tables are not current: another process may be migrating them."""
FULL = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY")
OF_THE_CALLER = (sa.exc.IntegrityError, sa.exc.ProgrammingError)
BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class Sqlite:
    clock: Clock

    def __init__(self, path: Path, readers: int) -> None:
        self.path, self.name = path, str(path)
        with ExitStack() as opened:
            with explained(self.path):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch(0o600)  # prompts and digests of keys; SQLite gives its log the same mode
                except OSError as error:
                    raise StorageError(f"{path} cannot be created: {error.strerror}") from error
                writer = _engine(path, 1)
                opened.callback(writer.dispose)
                self._readers = _engine(path, readers, "PRAGMA query_only = 1")
                self._connection = opened.enter_context(writer.connect())
                with self._connection.begin():
                    _begin_first(self._connection)
                    self.before = upgrade(self._connection, self.name)
                    self.clock = shared_clock(self._connection)
                self._file = _identity(path)
            self._opened = opened.pop_all()
        self._submitted: queue.SimpleQueue[tuple[Work, Pending[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work, pending: Pending[Any]) -> None:
        self._submitted.put((work, pending))

    def close(self) -> None:
        self._submitted.put(None)
        self._thread.join()
        self._readers.dispose()
        self._opened.close()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        self._check_file()
        with explained(self.path), self._readers.begin() as db:
            driver(db).execute("BEGIN")
            yield db

    def _check_file(self) -> None:
        """The open file of a removed one would accept data for no later reader."""
        if _identity(self.path) != self._file:
            raise StorageError(
                f"{self.path} was removed or replaced while it was in use: put it back, or start this program again"
            )

    def _write_all(self) -> None:
        while (first := self._submitted.get()) is not None:
            together = [first]
            while len(together) < TOGETHER and not self._submitted.empty():
                if (more := self._submitted.get()) is None:
                    self._submitted.put(None)
                    break
                together.append(more)
            self._write([each for each in together if each[1].set_running_or_notify_cancel()])

    def _write(self, together: list[tuple[Work, Pending[Any]]]) -> None:
        db = self._connection
        answers: list[tuple[Pending[Any], Any, BaseException | None]] = []
        try:
            self._check_file()
            with explained(self.path):
                transaction = db.begin()
                driver(db).execute("BEGIN IMMEDIATE")
                for work, pending in together:
                    answers.append((pending, *_tried(db, work)))
                transaction.commit()
        except BaseException as error:
            with suppress(sa.exc.SQLAlchemyError, sqlite3.Error):  # a full disk may have ended it already
                db.rollback()
            answers = [(pending, None, error) for _, pending in together]
        for pending, result, error_ in answers:
            if error_ is None:
                pending.set_result(result)
            else:
                pending.set_exception(error_)


def _begin_first(db: sa.Connection) -> None:
    """Begins the transaction that migrates the tables."""
    for left in reversed(range(OPENING)):
        try:
            driver(db).execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if (
                not left
                or not error.sqlite_errorname.startswith("SQLITE_BUSY")
                or revision(db) == migrations.HEAD
            ):
                raise


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _tried(db: sa.Connection, work: Work) -> tuple[Any, BaseException | None]:
    """The caller's result or error; an error that ended the shared transaction is raised."""
    raw = driver(db)
    raw.execute("SAVEPOINT caller")
    try:
        result = work(db)
    except Exception as error:
        if not raw.in_transaction:
            raise
        raw.execute("ROLLBACK TO caller")
        raw.execute("RELEASE caller")
        if isinstance(error, sa.exc.DBAPIError) and not isinstance(error, OF_THE_CALLER):
            raise
        return None, error
    raw.execute("RELEASE caller")
    return result, None


def driver(db: sa.Connection) -> sqlite3.Connection:
    raw = db.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _engine(path: Path, connections: int, *pragmas: str) -> sa.Engine:
    """Python's driver begins no transaction by itself (`isolation_level`): the callers execute BEGIN. A listener for
    it would cost each statement a tenth of its time."""
    made = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=60,
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False},
    )

    @event.listens_for(made, "connect")
    def prepare(connection: sqlite3.Connection, record: object) -> None:
        for pragma in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "PRAGMA foreign_keys = ON",
            "PRAGMA cache_size = -65536",
            "PRAGMA secure_delete = FAST",  # Debian's default overwrites each page that is freed
            *pragmas,
        ):
            connection.execute(pragma)

    return made


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours, with the remedy."""
    try:
        yield
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        name = getattr(cause, "sqlite_errorname", "")
        if name.startswith(BROKEN):
            raise StorageError(
                f"{path} is damaged ({cause}): restore a backup with `rondo db restore FILE`; "
                f"`sqlite3 {path} .recover` writes out the rows that are still readable"
            ) from error
        if name.startswith("SQLITE_CANTOPEN"):
            raise StorageError(
                f"{path} cannot be opened ({cause}): its folder must exist and be writable"
            ) from error
        if name.startswith(FULL):
            raise StorageError(f"{path} cannot be written ({cause}): make room on its disk") from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise Unavailable(
                f"{path} has been locked by another program for {BUSY_SECONDS:.0f} s: try again, and end the program "
                "that holds the lock"
            ) from error
        raise
