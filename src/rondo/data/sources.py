"""Records from JSON Lines files: `{"text"}`, `{"messages"}` or `{"prompt", "completion"}`, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.hashing import sha256_json

Record = dict[str, Any]
_SHAPES = ('{"text": ...}', '{"messages": [...]}', '{"prompt": ..., "completion": ...}')


def read_jsonl(path: Path | str) -> list[Record]:
    """All records of a file, or of every .jsonl file of a folder in name order."""
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise NotFound(f"no data at {path}: name a .jsonl file, or a folder that holds some", param="data")
    records = [record for file in files for record in _records(file)]
    if not records:
        raise InvalidRequest(f"{path} holds no records", param="data")
    return records


def dataset_hash(records: list[Record]) -> str:
    """The hash of the records themselves, whatever file or archive they came in."""
    return sha256_json(records)


def _records(file: Path) -> Iterator[Record]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _record(line, f"{file}, line {number}")


def _record(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise InvalidRequest(f"{where}: not JSON ({error})", param="data") from error
    if not isinstance(record, dict):
        raise InvalidRequest(f"{where}: a record is a JSON object, one of {', '.join(_SHAPES)}", param="data")
    problem = check_record(record)
    if problem:
        raise InvalidRequest(f"{where}: {problem}", param="data")
    return record


def check_record(record: Record) -> str | None:
    """What is wrong with a record, or None."""
    if "messages" in record:
        return _check_messages(record["messages"])
    wanted = ("prompt", "completion") if "prompt" in record or "completion" in record else ("text",)
    for name in wanted:
        if name not in record:
            return f'no "{name}" in this record; it must be one of {", ".join(_SHAPES)}'
        if not isinstance(record[name], str):
            return f'"{name}" must be a string, not {type(record[name]).__name__}'
    return None


def _check_messages(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return '"messages" must be a list with at least one message'
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f'messages[{index}] must be an object with a "role"'
        if not isinstance(message.get("content"), str | list | None):
            return f'messages[{index}]: "content" must be text'
        if message.get("content") is None and not message.get("tool_calls"):
            return f'messages[{index}] has neither "content" nor "tool_calls"'
    if not any(message["role"] == "assistant" for message in messages):
        return "there is no assistant message to learn from"
    return None
