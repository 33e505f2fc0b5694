"""Local data as JSON Lines, the form in which a gateway's jobs read them."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rondo.base.errors import InvalidRequest


@contextmanager
def jsonl_of(path: Path) -> Iterator[Path]:
    """The file itself if it is JSON Lines, else a temporary one with its records."""
    if path.suffix == ".jsonl":
        yield path
        return
    records = _records(path)
    folder = Path(tempfile.mkdtemp(prefix="rondo-upload-"))
    try:
        target = folder / f"{path.stem}.jsonl"
        with target.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _records(path: Path) -> Iterator[Any]:
    if path.suffix == ".json":
        return iter(_json(path))
    if path.suffix in (".csv", ".tsv"):
        return _table(path, "\t" if path.suffix == ".tsv" else ",")
    if path.suffix == ".txt":
        return iter([{"text": path.read_text(encoding="utf-8")}])
    raise InvalidRequest(
        f"{path} cannot be uploaded as training data: convert it to .jsonl, .json, .csv, .tsv or .txt.",
        param="data",
    )


def _json(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}.", param="data") from error
    return found if isinstance(found, list) else [found]


def _table(path: Path, delimiter: str) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file, delimiter=delimiter)
