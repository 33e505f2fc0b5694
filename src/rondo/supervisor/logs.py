"""Log files of the parts: written with rotation, and read by byte offset."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from rondo.base.errors import NotFound
from rondo.base.storage.home import home
from rondo.base.telemetry.log import get_logger

log = get_logger("rondo.supervisor")

NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
LARGEST_READ = 1 << 20
RETRIES = 20
GAP = 3
"""Free numbers after which a log has no further files."""


def logs_dir() -> Path:
    return home() / "logs"


def log_file(part: str) -> Path:
    return logs_dir() / f"{part}.log"


def parts_with_logs() -> list[str]:
    return sorted(file.stem for file in logs_dir().glob("*.log"))


class RotatingLog:
    """Appends bytes to `path`; a full file becomes `path.1`, and so on up to `files`. While the disk is full, bytes are
    dropped; a later line states their number."""

    def __init__(self, path: Path, size: int, files: int) -> None:
        self.path, self.size, self.files = path, size, files
        self.dropped = 0
        self._file: FileIO | None = None
        with suppress(OSError):  # the next write opens it
            self._open()

    def write(self, data: bytes) -> None:
        try:
            file = self._room_for(len(data))
            if self.dropped:
                _write_whole(file, b"\n(%d bytes of this log could not be written)\n" % self.dropped)
                self.dropped = 0
            _write_whole(file, data)
        except OSError as error:
            if not self.dropped:
                log.warning("a log is not written", extra={"file": str(self.path), "error": str(error)})
            self.dropped += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _room_for(self, size: int) -> FileIO:
        file = self._open()
        if file.tell() + size <= self.size or not file.tell():
            return file
        self._rotate()
        return self._open()

    def _open(self) -> FileIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def _rotate(self) -> None:
        self.close()
        for number in range(self.files, 0, -1):
            older = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        if not self.files:
            self.path.unlink(missing_ok=True)


def _write_whole(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@dataclass(frozen=True)
class LogPiece:
    """Bytes `start` to `end` of a log file of `size` bytes. A rotation begins a new `file`; `older` is the one before,
    if it is still there."""

    file: str
    start: int
    end: int
    size: int
    data: bytes
    older: str | None = None


def read_log(part: str, offset: int | None, limit: int, file: str | None = None) -> LogPiece:
    """Whole lines from `offset` on; without an offset, the end of the log.

    `file`: the file of the offset, which may have been rotated since. After its end the next one begins.
    """
    path, limit = log_file(part), min(limit, LARGEST_READ)
    for _ in range(RETRIES):  # of a reading during which the files were rotated
        files = _files(path) if NAME.fullmatch(part) else []
        place = next((place for place, each in enumerate(files) if each.id == file), None)
        if file is not None and place is None:
            offset = None  # that file was removed
        with suppress(FileNotFoundError):
            piece = _read(files, place or 0, offset, limit)
            if piece is not None:
                return piece
    known = ", ".join(parts_with_logs()) or "none"
    raise NotFound(f"There is no log of {part!r}. There are logs of: {known}.", param="part")


@dataclass(frozen=True)
class _File:
    path: Path
    id: str


def _files(path: Path) -> list[_File]:
    """Files of a log, the newest first. A rotation only raises numbers, so that looking in rising order misses none;
    one number is free during it."""
    found, free, number = [], 0, 0
    while free < GAP:
        each = path if not number else path.with_name(f"{path.name}.{number}")
        number, free = number + 1, free + 1
        with suppress(FileNotFoundError):
            found.append(_File(each, _id(each.stat())))
            free = 0
    return found


def _id(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _read(files: Sequence[_File], place: int, offset: int | None, limit: int) -> LogPiece | None:
    """None if the files were rotated meanwhile."""
    if place >= len(files):
        return None
    chosen = files[place]
    with chosen.path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if _id(status) != chosen.id:
            return None
        size = status.st_size
        start = max(0, size - limit) if offset is None else min(max(0, offset), size)
        opened.seek(start)
        data = opened.read(limit)
    if not data and offset is not None and place:
        return _read(files, place - 1, 0, limit)
    if offset is None and start:  # the first line is cut off
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    if (last := data.rfind(b"\n") + 1) and last < len(data):
        data = data[:last]
    older = files[place + 1].id if place + 1 < len(files) else None
    return LogPiece(chosen.id, start, start + len(data), size, data, older)
