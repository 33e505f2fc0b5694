"""Rows of a job's metrics.jsonl, which has a line for each step, in order. A poll and a list read only a part of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from rondo.base.errors import StorageError

TAIL_BYTES = 64 << 10
"""Bytes at the end of the file that `last_rows` reads."""
BLOCK = 32 << 10
"""Part of a file below which lines are read one by one instead of being searched by bisection."""


def rows_after(file: Path, step: int | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of the steps after `step`, or of all steps. Malformed and incomplete lines, and rows without a step, are
    skipped."""
    try:
        with file.open("rb") as opened:
            if step is not None:
                seek_after(opened, step)
            found: list[dict[str, Any]] = []
            for row in _rows(opened):
                if step is not None and row["step"] <= step:
                    continue
                found.append(row)
                if len(found) == limit:
                    break
            return found
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"Cannot read {file}: {error.strerror}.") from error


def last_rows(file: Path, size: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """Rows at the end of the file, of at most `size` bytes."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(opened.seek(0, os.SEEK_END) - size, 0))
            return list(_rows(opened))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"Cannot read {file}: {error.strerror}.") from error


def seek_after(file: BinaryIO, step: int) -> None:
    """Moves to the beginning of a line before all rows after the step."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        begin = file.tell()
        row = next(iter(_rows(file, high)), None)
        if row is None or begin >= high or row["step"] > step:
            high = middle
        else:
            low = begin
    file.seek(low)


def _rows(file: BinaryIO, end: int | None = None) -> Iterable[dict[str, Any]]:
    """Rows of the lines that begin before `end`."""
    while end is None or file.tell() < end:
        line = file.readline()
        if not line:
            return
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row
