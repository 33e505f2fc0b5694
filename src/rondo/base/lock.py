"""File locks between processes.

Every lock is an exclusive, advisory `flock` on an open file or folder. The kernel releases it when the handle is
closed, and so at the latest when its process ends, however it ends: a stale lock cannot exist.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

FOREVER = math.inf
_POLL_SECONDS = 0.02


def lock(handle: int, wait: float = 0.0, *, required: bool = True) -> bool:
    """Lock an open file or folder; False if another process still holds it after `wait` seconds.

    A file system without locks raises `OSError`, or counts as locked if the lock is not `required`.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        except OSError:
            if required:
                raise
            return True
        else:
            return True


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold a shared lock on `folder` during the block; `is_in_use` in another process detects it."""
    handle = share(folder)
    try:
        yield
    finally:
        os.close(handle)


def share(folder: Path) -> int:
    """Hold a shared lock on `folder` for the lifetime of this process, or until the returned handle is closed. A file
    system without locks is ignored.
    """
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle


def is_in_use(folder: Path) -> bool:
    """Whether another process holds a shared lock on `folder`."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle, required=False)
    finally:
        os.close(handle)


def open_lock(path: Path) -> int:
    """Handle of a lock file, which is created if it is missing and never removed."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


@contextlib.contextmanager
def locked(path: Path, wait: float = 0.0, *, required: bool = True) -> Iterator[bool]:
    """Hold the lock file at `path` during the block; yields whether the lock was acquired within `wait` seconds."""
    handle = open_lock(path)
    try:
        yield lock(handle, wait, required=required)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold a lock on an existing folder during the block, after waiting for its present owner."""
    handle = hold(path, FOREVER)
    try:
        yield
    finally:
        os.close(handle)


def hold(folder: Path, wait: float = 0.0) -> int:
    """Lock `folder` for the lifetime of this process, so that `remove_unheld` in another process spares it.

    Returns the handle; closing it releases the lock. On a file system without locks no folder is ever removed.
    """
    handle = os.open(folder, os.O_RDONLY)
    lock(handle, wait, required=False)
    return handle


def remove_unheld(folder: Path) -> bool:
    """Remove `folder` unless a live process holds it; an `OSError` where the folder is gone or locks are missing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not lock(handle):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(handle)
