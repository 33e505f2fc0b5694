"""Writes that happen whole or not at all.

Everything is written beside its final place, flushed to the disk, and renamed. A process killed half-way
leaves the old content in place, and at most a hidden temporary folder that the next writer of the same path
removes.
"""

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rondo.base.errors import Conflict, ModelError, NotFound, RondoError, StorageError
from rondo.base.lock import hold, remove_unheld
from rondo.base.storage.exchange import exchange
from rondo.base.units import human_bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STALE_SECONDS = 60


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Replaces the file at `path` by `data`; makes the folders above it."""
    path = Path(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temp = _temp_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temp, "xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        _fsync_dir(path.parent)
    except OSError as error:
        _discard(temp)  # before the free space is looked up
        raise storage_error(path, error, len(raw)) from error
    finally:
        _discard(temp)


def move_file(finished: Path, path: Path) -> None:
    """A file that was written beside its place, on the same disk, is synced and renamed."""
    try:
        _fsync_dir(finished)
        os.replace(finished, path)
        _fsync_dir(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error


@contextlib.contextmanager
def atomic_dir(path: str | Path, *, replace: bool = False, needed: int | None = None) -> Iterator[Path]:
    """Yields an empty folder that becomes `path` when the block ends well, and vanishes when it does not.

    A folder that already has something in it is a `Conflict` unless `replace`. With `needed`, a disk with
    fewer free bytes is an error before the first byte is written.
    """
    path = Path(path).absolute()
    refuse_existing(path, replace)
    temp = _temp_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        if needed is not None and shutil.disk_usage(path.parent).free < needed:
            raise storage_error(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)
        temp.mkdir()
    except OSError as error:
        raise storage_error(path, error, needed) from error
    lock = hold(temp)
    try:
        yield temp
        _move_into_place(temp, path, replace)
    except RondoError:
        raise
    except Exception as error:
        if _is_storage(error):
            shutil.rmtree(temp, ignore_errors=True)  # before the free space is looked up
            raise storage_error(path, error, needed) from error
        raise
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        os.close(lock)


def refuse_existing(path: Path, replace: bool) -> None:
    """A `Conflict` where `atomic_dir` would not write, for callers with long work before it."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise Conflict(f"{path} is not a plain folder. Choose another path or remove it.")
    if not replace and path.is_dir() and any(path.iterdir()):
        raise Conflict(f"{path} already exists and is not empty. Choose another path or remove it.")


def storage_error(path: str | Path, error: Exception, needed: int | None = None) -> StorageError:
    """The one-line error of a failed disk operation: operation, path, needed and free bytes."""
    if not _is_full(error):
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return StorageError(
            f"Cannot write {path}: {reason}. Check the path and its permissions.", code="cannot_write"
        )
    facts = [f"{human_bytes(needed)} needed"] if needed is not None else []
    with contextlib.suppress(OSError):
        facts.append(f"{human_bytes(shutil.disk_usage(_existing(Path(path))).free)} free")
    detail = f" ({', '.join(facts)})" if facts else ""
    return StorageError(
        f"No space left to write {path}{detail}. Free some space or choose another disk.", code="no_space"
    )


def read_json(path: str | Path) -> Any:
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"There is no file {path}.") from None
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not valid JSON ({error}). Restore it or remove it.") from None
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror}.") from error


def parse_json(data: bytes | str, where: str | Path) -> Any:
    """Parses a file of unknown origin: any error, from invalid UTF-8 to excessive nesting, is a `ModelError` with the
    file's name."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ModelError(f"{where} is not valid JSON ({error}). Correct it or download it again.") from None


def write_json(path: str | Path, obj: object) -> None:
    atomic_write(path, json.dumps(obj, indent=2, ensure_ascii=False) + "\n")


def _move_into_place(temp: Path, path: Path, replace: bool) -> None:
    _fsync_tree(temp)
    refuse_existing(path, replace)
    if path.is_dir() and any(path.iterdir()):
        exchange(temp, path)  # the old content is now at `temp`, which the caller removes
    else:
        os.rename(temp, path)  # onto nothing or an empty folder: one step in POSIX
    _fsync_dir(path.parent)


def _discard(temp: Path) -> None:
    with contextlib.suppress(OSError):  # renamed away, or never made
        os.unlink(temp)


def _temp_name(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"


def _sweep(path: Path) -> None:
    """Removes temporary folders of killed writers of `path`."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # another sweeper was faster, or the file system has no locks
            if left.is_dir() and time.time() - left.stat().st_mtime >= _STALE_SECONDS:
                remove_unheld(left)


def _is_full(error: Exception) -> bool:
    return _number_of(error) in _FULL


def _is_storage(error: Exception) -> bool:
    return _number_of(error) in {*_FULL, errno.EROFS, errno.EIO}


def _number_of(error: Exception) -> int | None:
    """The errno; Rust extensions (safetensors, tokenizers) have it in the text of their errors alone."""
    written = re.search(r"\(os error (\d+)\)", str(error))
    return int(written[1]) if written else getattr(error, "errno", None)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _fsync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fsync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            file = Path(folder) / name
            if not file.is_symlink():
                _fsync_dir(file)
        _fsync_dir(Path(folder))
