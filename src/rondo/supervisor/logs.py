"""Log files of the parts: written with rotation, and read by byte offset."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import NotFound
from rondo.base.storage.home import home

NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
LARGEST_READ = 1 << 20


def logs_dir() -> Path:
    return home() / "logs"


def log_file(part: str) -> Path:
    return logs_dir() / f"{part}.log"


def parts_with_logs() -> list[str]:
    return sorted(file.stem for file in logs_dir().glob("*.log"))


class RotatingLog:
    """Appends bytes to `path`; a full file becomes `path.1`, and so on up to `files`."""

    def __init__(self, path: Path, size: int, files: int) -> None:
        self.path, self.size, self.files = path, size, files
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self.size and self._file.tell():
            self._rotate()
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self.files, 0, -1):
            older = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            if older.exists():
                older.replace(self.path.with_name(f"{self.path.name}.{number}"))
        if not self.files:
            self.path.unlink(missing_ok=True)
        self._file = self.path.open("ab", buffering=0)


@dataclass(frozen=True)
class LogPiece:
    """Bytes `start` to `end` of a log file of `size` bytes. A rotation begins a new `file`."""

    file: str
    start: int
    end: int
    size: int
    data: bytes


def read_log(part: str, offset: int | None, limit: int, file: str | None = None) -> LogPiece:
    """Whole lines from `offset` on; without an offset, or with one in another `file`, the end of the log."""
    path = log_file(part)
    if not NAME.fullmatch(part) or not path.is_file():
        known = ", ".join(parts_with_logs()) or "none"
        raise NotFound(f"There is no log of {part!r}. There are logs of: {known}.", param="part")
    limit = min(limit, LARGEST_READ)
    with path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        name, size = f"{status.st_dev:x}-{status.st_ino:x}", status.st_size
        tail = offset is None or (file is not None and file != name)
        start = max(0, size - limit) if tail or offset is None else min(max(0, offset), size)
        opened.seek(start)
        data = opened.read(limit)
    if tail and start:  # the first line is cut off
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    if (last := data.rfind(b"\n") + 1) and last < len(data):
        data = data[:last]
    return LogPiece(name, start, start + len(data), size, data)
