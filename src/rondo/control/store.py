"""The one way to the durable state: SQLite, with a write-ahead log that is on the disk before anybody is answered.

One thread writes. What is asked of it while it waits for the disk becomes one transaction, in which each has a
savepoint of its own: so a thousand callers pay for one sync, and who fails takes nobody along.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from rondo.base.errors import Conflict, StorageError, Unavailable
from rondo.base.lock import lock
from rondo.control.schema import STEPS

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

TOGETHER = 256
"""The most pieces of work in one transaction."""
BUSY_SECONDS = 10.0
FULL = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
OF_THE_WORK = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class Store:
    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. It belongs to one process at a time."""
        self.path = path
        with ExitStack() as opened:
            self._lock = opened.enter_context(_held(path))
            self._writing = self._connect()
            opened.callback(self._writing.close)
            with _explained(path):
                _migrate(self._writing, path)
            opened.pop_all()
        self._readers = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._asked: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Has `work` done by the thread that writes. When the future has its result, the disk has it too."""
        done: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise Unavailable("the store is closed")
            self._asked.put((work, done))
        return done

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self.submit(work).result()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In the caller's thread; it sees what was written before it began, and waits for nobody."""
        connection = getattr(self._readers, "connection", None)
        if connection is None:
            connection = self._readers.connection = self._connect()
            connection.execute("PRAGMA query_only = 1")
            self._open.append(connection)
        with _explained(self.path):
            return work(connection)

    def backup(self, to: Path) -> None:
        """A copy as of one moment, while others read and write; it is whole, or not there."""
        part = to.with_name(to.name + ".part")
        part.unlink(missing_ok=True)
        with _explained(to):
            source, target = self._connect(), sqlite3.connect(part)
            try:
                source.backup(target)
            finally:
                target.close()
                source.close()
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(to)

    def close(self) -> None:
        """What was asked before is done first."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._asked.put(None)
        self._thread.join()
        for connection in (*self._open, self._writing):
            connection.close()
        self._lock.close()

    def _connect(self) -> sqlite3.Connection:
        with _explained(self.path):
            connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA cache_size = -65536")
        return connection

    def _write_all(self) -> None:
        while (first := self._asked.get()) is not None:
            together = [first]
            while len(together) < TOGETHER and not self._asked.empty():
                if (more := self._asked.get()) is None:
                    self._asked.put(None)
                    break
                together.append(more)
            self._write(together)

    def _write(self, together: list[tuple[Work, Future[Any]]]) -> None:
        connection = self._writing
        together = [each for each in together if each[1].set_running_or_notify_cancel()]
        answers: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with _explained(self.path):
                connection.execute("BEGIN IMMEDIATE")
                for work, done in together:
                    answers.append((done, *_tried(connection, work)))
                connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):  # a disk that is full may have ended it
                connection.execute("ROLLBACK")
            answers = [(done, None, error) for _, done in together]
        for done, result, failed in answers:
            if failed is None:
                done.set_result(result)
            else:
                done.set_exception(failed)


def _tried(connection: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
    """Its result or its error; an error that ended the transaction is everybody's, and raised."""
    connection.execute("SAVEPOINT own")
    try:
        result = work(connection)
    except Exception as error:
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO own")
        connection.execute("RELEASE own")
        if isinstance(error, sqlite3.Error) and not isinstance(error, OF_THE_WORK):
            raise
        return None, error
    connection.execute("RELEASE own")
    return result, None


def _held(path: Path) -> IO[bytes]:
    file = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("ab")
    except OSError as error:
        raise StorageError(f"{file} cannot be opened: {error.strerror}") from error
    if not lock(opened.fileno()):
        opened.close()
        raise Conflict(f"another process has {path} open: stop it first, or use another RONDO_HOME")
    return opened


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Step by step, each whole or not at all."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise Conflict(
            f"{path} was written by a newer version of Rondo (its tables are version {version}, the newest known here "
            f"is {len(STEPS)}): take that version, or another RONDO_HOME"
        )
    for number, statements in enumerate(STEPS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What SQLite says, as what to do about it."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(BROKEN):
            raise StorageError(
                f"{path} is damaged ({error}): put a backup in its place; what can be read of it, "
                f"`sqlite3 {path} .recover` writes out"
            ) from error
        if name.startswith(FULL):
            raise StorageError(f"{path} cannot be written ({error}): make room on its disk") from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise Unavailable(
                f"{path} has been locked by another program for {BUSY_SECONDS:.0f} s: try again, and end what holds it"
            ) from error
        raise
