"""Records of files that are read as a whole or row by row: JSON documents, and tables in CSV or TSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO

from rondo.base.errors import InvalidRequest
from rondo.data.input.detection import detect

LARGEST_CELL = 64 << 20
"""Maximum characters of one value of a table."""
BLANK = " \t\r\n"


def json_values(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yields (line, value) of a JSON document: the items of an array, the records under the only key with a list of
    objects, or JSON objects one after another."""
    line, counted = 1, 0
    for start, value in _values(json.JSONDecoder(), text, name):
        line, counted = line + text.count("\n", counted, start), start
        for record in _records_in(value):
            yield line, record


def _values(decoder: json.JSONDecoder, text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yields (start, value) of every value, and of every item of an array."""
    at, in_array = _skip(text, 0), False
    while at < len(text):
        if text[at] == "[" and not in_array:
            at, in_array = _skip(text, at + 1), True
        if text[at : at + 1] == "]" and in_array:
            at, in_array = _skip(text, at + 1), False
            continue
        value, end = _decode(decoder, text, at, name)
        yield at, value
        at = _skip(text, end)
        if in_array and text[at : at + 1] not in (",", "]"):
            raise _broken(text, at, name, 'the array needs "," or "]" here')
        if in_array and text[at] == ",":
            at = _skip(text, at + 1)
    if in_array:
        raise _broken(text, at, name, "the array has no end")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANK:
        at += 1
    return at


def _decode(decoder: json.JSONDecoder, text: str, at: int, name: str) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _broken(text, error.pos, name, error.msg) from None
    except (ValueError, RecursionError) as error:
        raise _broken(text, at, name, str(error)) from None


def _broken(text: str, at: int, name: str, problem: str) -> InvalidRequest:
    line = text.count("\n", 0, at) + 1
    return InvalidRequest(f"{name}, line {line}: not JSON ({problem})", param="data")


def _records_in(value: Any) -> list[Any]:
    """The records of an object such as {"version": ..., "data": [...]}; else the object itself."""
    if not isinstance(value, Mapping) or detect(value) is not None:
        return [value]
    lists = [
        each for each in value.values() if isinstance(each, list) and each and isinstance(each[0], Mapping)
    ]
    return list(lists[0]) if len(lists) == 1 else [value]


def table_rows(
    stream: BinaryIO, name: str, delimiter: str
) -> Generator[tuple[int, dict[str, Any] | None, str], None, None]:
    """Yields (line, row, problem) of a table whose first row has the field names. Values that are JSON lists or objects
    are parsed, empty values are left out."""
    csv.field_size_limit(LARGEST_CELL)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            return
        if len(set(header)) < len(header) or not all(header):
            raise InvalidRequest(
                f"{name}: the first row must have the field names, each once; it is {', '.join(header)[:200]!r}",
                param="data",
            )
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(header):
                problem = f"the row has {len(cells)} values, but the first row has {len(header)} field names"
                yield rows.line_num, None, problem
                continue
            yield rows.line_num, {field: _cell(cell) for field, cell in zip(header, cells) if cell}, ""
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{name}, line {rows.line_num + 1}: not a table ({error})", param="data"
        ) from None
    finally:
        text.detach()


def _cell(text: str) -> Any:
    if text[0] not in "[{":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
