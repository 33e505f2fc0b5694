"""Contents of files on a disk. A content is complete under its final name, or absent.

<folder>/kept/<last two characters of the id>/<id>   contents of files
<folder>/incoming/                                   contents that are being received
<folder>/parts/<upload>/<part>                       parts of uploads
<folder>/batches/<batch>.input|output|errors         working files of running batches
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rondo.base.errors import NotFound, StorageError

NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
COPIED = 1 << 20
"""Bytes of a content that are in memory at a time."""


class NewBlob:
    """A content that is being written. It is removed unless `keep` is called."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        with explained(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        with explained(self.path.parent):
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        self.size += len(data)

    def keep(self, path: Path) -> None:
        """Moves the content to its final name, once it is on the disk."""
        with explained(path.parent):
            os.fsync(self._file.fileno())
            self._file.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(path)
            sync_folder(path.parent)

    def drop(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> NewBlob:
        return NewBlob(self.folder / "incoming" / secrets.token_hex(16))

    def kept(self, id: str) -> Path:
        return self.folder / "kept" / _checked(id)[-2:] / id

    def part(self, upload: str, part: str) -> Path:
        return self.folder / "parts" / _checked(upload) / _checked(part)

    def working(self, batch: str, kind: str) -> Path:
        return self.folder / "batches" / f"{_checked(batch)}.{kind}"

    def link(self, source: Path, target: Path) -> None:
        """A second name of a content, which outlives the first. Repeating it has no effect."""
        with explained(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.link(source, target)
            os.utime(target)  # for `names`
            sync_folder(target.parent)

    def join(self, sources: Sequence[Path]) -> tuple[NewBlob, str]:
        """A content of several in order, and its MD5 in hex."""
        blob, digest = self.new(), hashlib.md5(usedforsecurity=False)
        try:
            for source in sources:
                with explained(source.parent), source.open("rb") as file:
                    while piece := file.read(COPIED):
                        digest.update(piece)
                        blob.write(piece)
        except BaseException:
            blob.drop()
            raise
        return blob, digest.hexdigest()

    def remove(self, id: str) -> None:
        self.kept(id).unlink(missing_ok=True)

    def remove_parts(self, upload: str) -> None:
        shutil.rmtree(self.folder / "parts" / _checked(upload), ignore_errors=True)

    def remove_working(self, batch: str) -> None:
        for kind in ("input", "output", "errors"):
            self.working(batch, kind).unlink(missing_ok=True)

    def names(self, kind: str, older_than: float) -> Iterator[Path]:
        """Entries of a folder that were last changed so many seconds ago."""
        latest = time.time() - older_than
        for path in (self.folder / kind).rglob("*") if kind == "kept" else (self.folder / kind).glob("*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < latest and (kind != "kept" or path.is_file()):
                    yield path


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Writes within a file, and returns when the data are on the disk."""
    with explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(handle, view, offset)
                view, offset = view[written:], offset + written
            os.fdatasync(handle)
        finally:
            os.close(handle)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raises errors of the disk with their remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"The content is missing on the disk of the gateway ({error.filename}).") from error
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror}): make room on its disk, or set files.folder to another.",
            code="disk_full",
        ) from error


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checked(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise NotFound(f"There is no object {name[:100]!r}.")
    return name
