"""Lines of a batch's input file: validation, and their form in the queue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from rondo.base.errors import InvalidRequest, RondoError
from rondo.client.protocol.item import StateFields
from rondo.control.objects.blobs import explained

YIELDED = 32
"""Lines after which the interpreter is left to other threads, such as the gateway's event loop."""
MOST_ERRORS = 100
TOO_LONG = "line_too_long"
ABSENT = msgspec.Raw(b"")
LONGEST_CUSTOM_ID = 512


class _Line(msgspec.Struct):
    custom_id: msgspec.Raw = ABSENT
    method: msgspec.Raw = ABSENT
    url: msgspec.Raw = ABSENT
    body: msgspec.Raw = ABSENT


class _Body(StateFields):
    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT


_lines, _bodies = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Body)


@dataclass(frozen=True)
class Line:
    custom_id: str
    model: str
    body: bytes


class LineError(InvalidRequest):
    """One invalid line."""


@dataclass(frozen=True)
class Checked:
    """A validated file: the number of its requests, the model if all have the same, and the errors."""

    total: int
    model: str | None
    errors: list[dict[str, Any]]


def lines_of(path: Path, longest: int, begin: int = 0) -> Iterator[tuple[bytes, int]]:
    """Lines, empty ones included, and the offset after each. Of a line over `longest` bytes only the begin is read."""
    with explained(path.parent), path.open("rb", buffering=1 << 18) as file:
        file.seek(begin)
        at = begin
        for number in itertools.count(1):
            line = file.readline(longest + 2)
            if not line:
                return
            at += len(line)
            yield line, at
            if number % YIELDED == 0:
                time.sleep(0)


def check_file(path: Path, endpoint: str, longest: int, most: int, may_use: Callable[[str], None]) -> Checked:
    """Validates each line. `may_use` raises for a model that the owner cannot use."""
    errors: list[dict[str, Any]] = []
    seen: dict[int, int] = {}
    models: dict[str, RondoError | None] = {}
    total = 0
    for number, (raw, _) in enumerate(lines_of(path, longest), 1):
        if not raw.strip():
            continue
        total += 1
        if total > most:
            errors.append(_error("too_many_tasks", f"The file has more than {most:,} requests.", None, None))
            break
        try:
            line = read_line(raw, endpoint, longest)
            _check_model(line.model, models, may_use)
            first = seen.setdefault(xxhash.xxh3_64_intdigest(line.custom_id.encode()), number)
            if first != number:
                raise LineError(
                    f"The custom_id {line.custom_id!r} of this line is that of line {first} too.",
                    param="custom_id",
                    code="duplicate_custom_id",
                )
        except RondoError as error:
            errors.append(_error(error.code or "invalid_request", error.message, error.param, number))
            if len(errors) >= MOST_ERRORS or error.code == TOO_LONG:
                break
    if not total:
        errors.append(
            _error("empty_file", "The file has no request: it needs one JSON object a line.", None, None)
        )
    return Checked(total, next(iter(models)) if len(models) == 1 else None, errors)


def read_line(raw: bytes, endpoint: str, longest: int) -> Line:
    if len(raw.rstrip(b"\r\n")) > longest:
        raise LineError(f"This line has more than {longest:,} bytes.", code=TOO_LONG)
    try:
        raw.decode()
        line = _lines.decode(raw)
        body = _bodies.decode(line.body) if bytes(line.body)[:1] == b"{" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"This line is not a JSON object: {error}.", code="invalid_json_line") from error
    custom_id = _text(line.custom_id, "custom_id")
    if len(custom_id) > LONGEST_CUSTOM_ID:
        raise LineError(
            f"custom_id has more than {LONGEST_CUSTOM_ID} characters.",
            param="custom_id",
            code="invalid_custom_id",
        )
    if (method := _text(line.method, "method")) != "POST":
        raise LineError(f"method is POST, not {method!r}.", param="method", code="invalid_method")
    if (url := _text(line.url, "url")) != endpoint:
        raise LineError(
            f"url is {url!r}, and the batch is for {endpoint}: use a batch for each endpoint.",
            param="url",
            code="invalid_url",
        )
    if body is None:
        raise LineError(
            "body is missing: it is the JSON object of the request.", param="body", code="missing_body"
        )
    if bytes(body.stream) not in (b"", b"null", b"false"):
        raise LineError(
            "stream is not supported in a batch.", param="body.stream", code="stream_not_supported"
        )
    if name := body.used:
        raise LineError(
            f"{name} is not supported in a batch, whose results are in its output file: leave it out, and send the "
            "whole conversation.",
            param=f"body.{name}",
            code=f"{name}_not_supported",
        )
    return Line(custom_id, _text(body.model, "body.model"), bytes(line.body))


def _text(raw: msgspec.Raw, name: str) -> str:
    value = msgspec.json.decode(raw) if bytes(raw) else None
    if not isinstance(value, str) or not value:
        code = "missing_required_parameter" if value is None else "invalid_type"
        raise LineError(f"{name} is missing: it is a text that is not empty.", param=name, code=code)
    return value


def _check_model(model: str, known: dict[str, RondoError | None], may_use: Callable[[str], None]) -> None:
    if model not in known:
        known[model] = None
        try:
            may_use(model)
        except RondoError as error:
            known[model] = error
    if (refused := known[model]) is not None:
        raise refused


def _error(code: str, message: str, param: str | None, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
