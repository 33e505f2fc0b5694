"""Local disk cache of objects from a remote store: bounded, least recently used evicted first, shared by processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from rondo.base.errors import InvalidRequest, StorageError, Unavailable
from rondo.base.lock import FOREVER, lock, locked
from rondo.base.storage.files import storage_error
from rondo.base.storage.home import cache_dir
from rondo.base.units import human_bytes
from rondo.data.storage.places import SourceFile, open_file

WAIT_SECONDS = 900.0
"""Seconds to wait for another process that downloads the same object."""
CHUNK = 4 << 20
PARTIAL = ".part"


class Cache:
    """The cache. A file may be evicted while a process reads it; open handles stay valid."""

    def __init__(
        self, limit: int, folder: Path | None = None, setting: str = "train.loader.cache_bytes"
    ) -> None:
        """`setting`: name of the limit, for errors."""
        self.limit, self.setting = limit, setting
        self.folder = folder or cache_dir() / "objects"

    def fetch(self, file: SourceFile, sha256: str | None = None) -> Path:
        """The object's content as a local file. Concurrent processes download it once."""
        if file.size > self.limit:
            raise InvalidRequest(
                f"{file.name} has {human_bytes(file.size)}, more than the cache may hold ({human_bytes(self.limit)}): "
                f"raise {self.setting}.",
                param=self.setting,
            )
        path = self.folder / _key(file)
        try:
            if _touched(path):
                return path
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / f".{path.name}.lock", WAIT_SECONDS) as acquired:
                _require(acquired, file.name)
                if not _touched(path):
                    self._download(file, path, sha256)
        except OSError as error:
            raise storage_error(path, error, file.size) from error
        return path

    def _download(self, file: SourceFile, path: Path, sha256: str | None) -> None:
        part = path.with_name(path.name + PARTIAL)
        with part.open("wb") as out:
            lock(out.fileno(), FOREVER)  # held until the file is closed: marks it as owned by a live process
            self._make_room(file.size)
            out.truncate(file.size)  # other processes count the final size
            found = hashlib.sha256()
            with open_file(file.name) as source:
                while chunk := source.read(CHUNK):
                    out.write(chunk)
                    found.update(chunk)
            if out.tell() != file.size or (sha256 and found.hexdigest() != sha256):
                part.unlink()
                raise StorageError(f"{file.name} does not match its checksum: it is damaged. Write it again.")
            out.flush()  # the object is visible before the file is closed
            os.replace(part, path)

    def _make_room(self, needed: int) -> None:
        with locked(self.folder / ".room.lock", WAIT_SECONDS) as acquired:
            _require(acquired, str(self.folder))
            kept = sorted(self._entries())
            total = sum(size for _, size, _ in kept)
            for _, size, path in kept:
                if total + needed <= self.limit:
                    return
                if path.suffix != PARTIAL or _abandoned(path):
                    path.unlink(missing_ok=True)
                    total -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """Yields (last use, bytes, file)."""
        for path in self.folder.iterdir():
            if not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    yield stat.st_mtime, stat.st_size, path


def _key(file: SourceFile) -> str:
    name = hashlib.sha256(f"{file.name}\n{file.size}\n{file.stamp}".encode()).hexdigest()[:32]
    return f"{name}-{file.name.rpartition('/')[2][-80:]}"


def _touched(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _abandoned(part: Path) -> bool:
    with contextlib.suppress(OSError), part.open("rb") as file:
        return lock(file.fileno())
    return False


def _require(acquired: bool, name: str) -> None:
    if not acquired:
        raise Unavailable(f"another process has been fetching {name} for {WAIT_SECONDS:.0f} s")
