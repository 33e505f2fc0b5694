"""Records from JSON, JSON Lines, CSV, plain text and Parquet files, possibly compressed, whole or in parts."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import msgspec

from rondo.base.errors import InvalidRequest, MissingExtra
from rondo.data.input.containers import json_values, table_rows
from rondo.data.input.conversion import RecordConverter
from rondo.data.input.detection import FORMATS, NAMES, FormatName, explain
from rondo.data.input.records import Record
from rondo.data.storage.places import SourceFile, open_file

Kind = Literal["jsonl", "json", "csv", "tsv", "text", "parquet"]
Unit = Literal["file", "line"]
Convert = Callable[[Record], tuple[Record | None, str]]
"""Returns the record to train on, or None and the problem."""

KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
}
LINES: tuple[Kind, ...] = ("jsonl", "text")
"""Kinds whose files can be read from any line on."""
COMPRESSIONS = ("", ".gz", ".zst")
SUFFIXES = tuple(f"{kind}{end}" for kind in KINDS for end in (COMPRESSIONS if kind != ".parquet" else ("",)))

LONGEST = 256 << 20
"""Maximum bytes of one line, or of a file that is one document; more is a mistake."""
LARGEST_JSON = 4 << 30
"""Maximum bytes of a JSON document, which is read at once."""
ROWS = 256


@dataclass(frozen=True)
class Form:
    """The layout of documents in the files."""

    fields: dict[str, str] = field(default_factory=dict)
    """Names in the data for `text`, `messages`, `prompt`, `completion`, `instruction`, ..."""
    text: Unit = "file"
    """The unit of a plain text file that is one document."""
    format: FormatName | None = None
    """Format of the records; None: detected in each file."""


@dataclass(frozen=True)
class FilePart:
    """Part of a file to read at once: bytes `begin` to `end` of a file of lines, or row groups of Parquet. A line
    belongs to the part that contains its first byte."""

    file: SourceFile
    begin: int
    end: int
    size: int
    """Size in bytes, for progress reports."""


class ParsedRecord(NamedTuple):
    number: int
    """Number of the line or row, from 1 at the start of the part."""
    record: Record | None
    problem: str = ""
    done: int = 0
    """Bytes of the file read up to this record."""
    line: int = 0
    """The record's line in the file, if it is numbered otherwise."""


def kind_of(name: str) -> Kind:
    stem = name.removesuffix(".gz").removesuffix(".zst")
    for suffix, kind in KINDS.items():
        if stem.endswith(suffix):
            return kind
    raise InvalidRequest(
        f"{name}: a file name ends in its format, one of {', '.join(SUFFIXES)}", param="data"
    )


def parts_of(file: SourceFile, form: Form, size: int) -> list[FilePart]:
    """Parts of about `size` bytes each, if the format can be read from the middle; else one part."""
    kind = kind_of(file.name)
    if kind == "parquet":
        return _row_groups(file, size)
    if file.name.endswith((".gz", ".zst")) or kind not in LINES or (kind == "text" and form.text == "file"):
        return [FilePart(file, 0, file.size, file.size)]
    begins = range(0, file.size, size)
    return [
        FilePart(file, begin, end, end - begin) for begin in begins for end in [min(begin + size, file.size)]
    ]


def whole(file: SourceFile) -> FilePart:
    end = int(_footer(file).num_row_groups) if kind_of(file.name) == "parquet" else file.size
    return FilePart(file, 0, end, file.size)


def unit_of(file: SourceFile) -> str:
    kind = kind_of(file.name)
    return "line" if kind in LINES else "record" if kind == "json" else "row"


def place_of(file: SourceFile, number: int, line: int = 0) -> str:
    """The place of a record in errors."""
    return f"{file.name}, {unit_of(file)} {number}{f' (line {line})' if line else ''}"


def read_part(part: FilePart, form: Form, convert: Convert | None = None) -> Iterator[ParsedRecord]:
    """Yields every record of a part, and every broken line. Empty lines are skipped. `convert` replaces the detection
    of the format."""
    own = _renamed(form, convert or RecordConverter(form.format))
    match kind_of(part.file.name):
        case "parquet":
            yield from _parquet(part, form, own)
        case "json":
            yield from _json(part, own)
        case "csv":
            yield from _table(part, ",", own)
        case "tsv":
            yield from _table(part, "\t", own)
        case "text" if form.text == "file":
            yield _file(part)
        case kind:
            for number, line, done in _lines(part):
                if line is None:
                    yield ParsedRecord(number, None, f"a line of more than {LONGEST} bytes", done)
                elif line.strip():
                    record, problem = _json_line(line, own) if kind == "jsonl" else _text(line)
                    yield ParsedRecord(number, record, problem, done)


def _renamed(form: Form, convert: Convert) -> Convert:
    """`convert` after the fields have their usual names."""

    def renamed(record: Record) -> tuple[Record | None, str]:
        for name, theirs in form.fields.items():
            if theirs in record:
                record[name] = record.pop(theirs)
            elif name == "text":
                return None, f'no "{theirs}" in this record'
        return convert(record)

    return renamed if form.fields else convert


def lines_before(part: FilePart) -> int:
    """Number of lines or rows of the file before a part."""
    if kind_of(part.file.name) == "parquet":
        metadata = _footer(part.file)
        return sum(metadata.row_group(i).num_rows for i in range(part.begin))
    if part.begin == 0:
        return 0
    with open_file(part.file.name) as file:
        left, count, last = part.begin, 0, b""
        while left and (chunk := file.read(min(left, 1 << 20))):
            left, count, last = left - len(chunk), count + chunk.count(b"\n"), chunk
        return count + (not last.endswith(b"\n"))


def _lines(part: FilePart) -> Iterator[tuple[int, bytes | None, int]]:
    """Yields (number, line, bytes done); the line is None if it is too long."""
    with open_file(part.file.name) as raw:
        packed = part.file.name.endswith((".gz", ".zst"))
        stream = _stream(raw, part.file.name)
        at = part.begin
        if at:
            stream.seek(at - 1)
            at += sum(map(len, _rest(stream))) - 1
        number = 0
        try:
            while packed or at < part.end:
                line = stream.readline(LONGEST + 1)
                if not line:
                    return
                number += 1
                at += len(line)
                too_long = len(line) > LONGEST and not line.endswith(b"\n")
                if too_long:
                    at += sum(map(len, _rest(stream)))
                yield number, None if too_long else line, raw.tell() if packed else at - part.begin
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequest(
                f"{part.file.name} is damaged after line {number}: {error}", param="data"
            ) from error
        except OSError as error:
            raise InvalidRequest(
                f"{part.file.name} cannot be read after line {number}: {error}", param="data"
            ) from error


def _rest(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a line, in bounded pieces."""
    while line := stream.readline(1 << 20):
        yield line
        if line.endswith(b"\n"):
            return


def _unpacked(raw: BinaryIO, name: str) -> BinaryIO:
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    pyarrow = _pyarrow()
    return cast(BinaryIO, io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 20))


def _file(part: FilePart) -> ParsedRecord:
    with open_file(part.file.name) as raw:
        try:
            data = _stream(raw, part.file.name).read(LONGEST + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidRequest(f"{part.file.name} is damaged: {error}", param="data") from error
    if len(data) > LONGEST:
        return ParsedRecord(
            1, None, f"one document of more than {LONGEST} bytes: take its lines as documents", part.size
        )
    record, problem = _text(data, strip=False)
    return ParsedRecord(1, record, problem, part.size)


def _text(data: bytes, strip: bool = True) -> tuple[Record | None, str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, f"not text in UTF-8 ({error})"
    return {"text": text.rstrip("\r\n") if strip else text}, ""


def _json_line(line: bytes, convert: Convert) -> tuple[Record | None, str]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:  # the slower module accepts more, such as NaN, and its errors have the column
            # Decoding first spares the detection of UTF-16 and UTF-32, whose lines cannot be separated anyway.
            value = json.loads(line if line.startswith(BOM_UTF8) else line.decode())
        except (
            ValueError,
            RecursionError,
        ) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            if line.strip() in (b"[", b"[{", b"{"):
                return (
                    None,
                    f"not JSON ({error}): a file with one JSON document needs a name that ends in .json",
                )
            return None, f"not JSON ({error})"
    return _of_value(value, convert)


def _of_value(value: Any, convert: Convert) -> tuple[Record | None, str]:
    if not isinstance(value, dict):
        return None, f"a record is a JSON object, such as {FORMATS['chat'].example}"
    return convert(value)


def _json(part: FilePart, convert: Convert) -> Iterator[ParsedRecord]:
    with open_file(part.file.name) as raw:
        data = _whole(raw, part.file.name, LARGEST_JSON)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{part.file.name}: not text in UTF-8 ({error})", param="data") from None
    for number, (line, value) in enumerate(json_values(text, part.file.name), 1):
        record, problem = _of_value(value, convert)
        yield ParsedRecord(number, record, problem, part.size, line)


def _table(part: FilePart, delimiter: str, convert: Convert) -> Iterator[ParsedRecord]:
    with (
        open_file(part.file.name) as raw,
        closing(table_rows(_stream(raw, part.file.name), part.file.name, delimiter)) as rows,
    ):
        try:
            for number, (line, row, problem) in enumerate(rows, 1):
                record, problem = (None, problem) if row is None else convert(row)
                yield ParsedRecord(number, record, problem, raw.tell(), line)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidRequest(f"{part.file.name} is damaged: {error}", param="data") from error


def _whole(raw: BinaryIO, name: str, most: int) -> bytes:
    """All bytes of a file, one more than `most` at most."""
    try:
        data = _stream(raw, name).read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidRequest(f"{name} is damaged: {error}", param="data") from error
    if len(data) > most:
        raise InvalidRequest(f"{name} has more than {most} bytes: convert it to JSON Lines", param="data")
    return data


def _stream(raw: BinaryIO, name: str) -> BinaryIO:
    return _unpacked(raw, name) if name.endswith((".gz", ".zst")) else raw


def _parquet(part: FilePart, form: Form, convert: Convert) -> Iterator[ParsedRecord]:
    with open_file(part.file.name) as raw:
        file = _parquet_file(raw, part.file.name, _footer(part.file))
        wanted = {form.fields.get(name, name) for name in NAMES}
        columns = [name for name in file.schema_arrow.names if name in wanted]
        if not columns:
            raise InvalidRequest(
                f"{part.file.name}: {explain(dict.fromkeys(file.schema_arrow.names))}", param="data"
            )
        groups = list(range(part.begin, part.end))
        total = max(sum(file.metadata.row_group(i).num_rows for i in groups), 1)
        number = 0
        try:
            for batch in file.iter_batches(ROWS, row_groups=groups, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    record, problem = convert(_present(row))
                    yield ParsedRecord(number, record, problem, part.size * number // total)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"{part.file.name} is damaged after row {number}: {error}", param="data"
            ) from error


def _present(value: Any) -> Any:
    """Removes null fields: a Parquet column has the fields of all its rows in every row."""
    if isinstance(value, list):
        return [_present(each) for each in value]
    if isinstance(value, dict):
        return {name: _present(each) for name, each in value.items() if each is not None}
    return value


def _row_groups(file: SourceFile, size: int) -> list[FilePart]:
    metadata = _footer(file)
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    parts, begin, held = [], 0, 0
    for i, own in enumerate(sizes):
        held += own
        if held >= size or i == len(sizes) - 1:
            parts.append(FilePart(file, begin, i + 1, held))
            begin, held = i + 1, 0
    return parts


@lru_cache(maxsize=16)
def _footer(file: SourceFile) -> Any:
    """Metadata of a Parquet file, which lists all of its row groups and columns."""
    with open_file(file.name) as raw:
        return _parquet_file(raw, file.name).metadata


def _parquet_file(raw: BinaryIO, name: str, metadata: Any = None) -> Any:
    _pyarrow()
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(raw, metadata=metadata)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{name} is not a Parquet file: {error}", param="data") from error


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow
