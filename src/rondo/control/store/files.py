"""Backup, restore and check of a store in SQLite."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rondo.base.errors import Conflict, NotFound, StorageError
from rondo.control.migrations import HEAD
from rondo.control.store.sqlite import explained

PENDING_BYTE = 0x40000000
SHARED_FIRST, SHARED_SIZE = PENDING_BYTE + 2, 510
"""Bytes of the file that each SQLite connection in WAL mode locks for reading as long as it is open."""


def backup(path: Path, to: Path) -> None:
    """A copy as of one moment, while other processes read and write. It is complete, or absent."""
    _require(path)
    if not to.parent.is_dir():
        raise NotFound(f"There is no folder {to.parent} to write {to.name} to.")
    part = to.with_name(to.name + ".part")
    try:
        part.unlink(missing_ok=True)
        part.touch(0o600)
        with (
            explained(path),
            closing(sqlite3.connect(path)) as source,
            explained(to),
            closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        _move(part, to)
    except OSError as error:
        raise StorageError(f"{to} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def restore(backup: Path, path: Path) -> Path | None:
    """Puts a backup in the place of the store, which no process may have open. The replaced file's new name."""
    _require(backup)
    if problems := integrity(backup):
        raise StorageError(f"{backup} is damaged ({problems[0]}): take another backup")
    if _revision(backup) > HEAD:
        raise Conflict(
            f"{backup} was written by a newer version of Rondo (revision {_revision(backup)}, the newest known here is "
            f"{HEAD}): install that version"
        )
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _unused(path):
            part.unlink(missing_ok=True)
            part.touch(0o600)
            shutil.copyfile(backup, part)
            replaced = _set_aside(path) if path.exists() else None
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            _move(part, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    return replaced


def integrity(path: Path) -> list[str]:
    """Problems of the file as reported by SQLite; none if it is sound."""
    _require(path)
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            found = [text for (text,) in db.execute("PRAGMA integrity_check(20)")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found


def _revision(path: Path) -> str:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return str(db.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    except (sqlite3.DatabaseError, TypeError) as error:
        raise StorageError(f"{path} is not a backup of a store: `rondo db backup FILE` writes one") from error


def _set_aside(path: Path) -> Path:
    """The old file and its log, which may hold the newest transactions, under the next free name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    log = path.with_name(path.name + "-wal")
    if log.exists():
        log.replace(aside.with_name(aside.name + "-wal"))
    path.replace(aside)
    return aside


@contextmanager
def _unused(path: Path) -> Iterator[None]:
    """Holds the lock that excludes SQLite connections; `Conflict` while a process has one."""
    if not path.exists():
        yield
        return
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, SHARED_SIZE, SHARED_FIRST)
        except OSError as error:
            raise Conflict(
                f"another process has {path} open: stop it first (rondo serve, a gateway)"
            ) from error
        yield


def _move(part: Path, to: Path) -> None:
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(to)
    folder = os.open(to.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _require(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"There is no file {path}.")
