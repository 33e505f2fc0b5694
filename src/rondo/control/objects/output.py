"""Output and error files of a batch, written in the order of its input file.

The bytes at each offset follow from the input file and from results, which are final. A driver that was killed, or that
was overtaken by another, therefore writes the same bytes at the same offsets, and each line is written once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sqlalchemy as sa

from rondo.base.errors import NotFound
from rondo.client.protocol.item import ItemResult, Refusal, read_refusal, read_result
from rondo.control.config import BatchesConfig
from rondo.control.objects.batches import StoredBatch, change
from rondo.control.objects.blobs import Blobs, write_at
from rondo.control.objects.lines import lines_of, read_line
from rondo.control.queue.rows import UNENDED, group_of
from rondo.control.store.store import Store
from rondo.control.tables import requests, results

AT_A_TIME, AT_A_TIME_CHARACTERS = 500, 16 << 20
"""Requests whose results are in memory at a time, and the size of these."""
NOT_EXECUTED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
}

_from_place = requests.c.group_id == sa.bindparam("group"), requests.c.place >= sa.bindparam("begin")
_STATES = sa.select(requests.c.place, requests.c.state).where(*_from_place).order_by(requests.c.place)
_RESULTS = (
    sa.select(requests.c.place, requests.c.state, requests.c.reason, results.c.result)
    .select_from(requests)
    .outerjoin(results, results.c.id == requests.c.id)
    .where(*_from_place)
    .order_by(requests.c.place)
    .limit(sa.bindparam("number"))
)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


_responses = msgspec.json.Decoder(_Response)


@dataclass(frozen=True)
class _Written:
    """What a piece of the results adds to the files and to the batch."""

    output: bytes
    errors: bytes
    changes: dict[str, int]


def write_results(
    store: Store, blobs: Blobs, config: BatchesConfig, batch: StoredBatch
) -> StoredBatch | None:
    """Writes the next results, at most `AT_A_TIME`, up to the first request that has not ended. The batch afterwards;
    None if there is nothing to write, or another driver wrote it."""
    rows = store.read(lambda db: _ended_rows(db, batch)).result()
    if not rows:
        return None
    piece = _lines_of(blobs, config, batch, rows)
    for kind, offset, data in (
        ("output", batch.output_bytes, piece.output),
        ("errors", batch.error_bytes, piece.errors),
    ):
        if data:
            write_at(blobs.working(batch.id, kind), offset, data)
    changes: dict[str, Any] = {name: getattr(batch, name) + number for name, number in piece.changes.items()}
    if not store.write(lambda db: change(db, batch, changes)).result():
        return None
    return replace(batch, **changes)


def output_ids(batch: str) -> tuple[str, str]:
    """Ids of the output and the error file. They follow from the batch, so that publishing them can be repeated."""
    output, errors = (
        hashlib.sha256(f"{batch} {kind}".encode()).hexdigest()[:32] for kind in ("output", "errors")
    )
    return f"file-{output}", f"file-{errors}"


def _ended_rows(db: sa.Connection, batch: StoredBatch) -> list[Any]:
    """Requests from the first that is not written on, which have ended. Of a batch that was cancelled or has expired,
    requests that never were in the queue have ended too."""
    stopped = batch.outcome != "completed"
    there, rows = _queued_rows(db, batch, stopped)
    if stopped and len(rows) == there < AT_A_TIME:
        rows += [None] * (min(batch.total - batch.written, AT_A_TIME) - there)
    return rows


def _queued_rows(db: sa.Connection, batch: StoredBatch, stopped: bool) -> tuple[int, list[Any]]:
    """The number of requests in the queue, and those at the begin that have ended, with their results."""
    if batch.queued_as is None:
        return 0, []
    try:
        id, _ = group_of(db, batch.queued_as)
    except NotFound:
        if stopped:
            return 0, []
        raise
    at = {"group": id, "begin": batch.written}
    states = db.execute(_STATES.limit(AT_A_TIME), at).all()
    unended = (number for number, row in enumerate(states) if row.state in UNENDED)
    number, rows, size = next(unended, len(states)), list[Any](), 0
    for row in db.execute(_RESULTS, at | {"number": number}) if number else ():
        rows.append(row)
        size += len(row.result or "")
        if size > AT_A_TIME_CHARACTERS:
            break
    return len(states), rows


def _lines_of(blobs: Blobs, config: BatchesConfig, batch: StoredBatch, rows: Sequence[Any]) -> _Written:
    output, errors = bytearray(), bytearray()
    added = dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), 0)
    completed, read = 0, batch.input_read
    lines = lines_of(blobs.working(batch.id, "input"), config.line_bytes, batch.input_read)
    for number, row in enumerate(rows):
        raw, read = next((raw, at) for raw, at in lines if raw.strip())
        line = read_line(raw, batch.endpoint, config.line_bytes)
        id = f"{batch.id.replace('batch_', 'batch_req_', 1)}_{batch.written + number:09d}"
        response = _response_of(row)
        if response is None:
            errors += _failed(id, line.custom_id, batch, row)
        elif response.status >= 400:
            errors += _answered(id, line.custom_id, response)
        else:
            output += _answered(id, line.custom_id, response)
            completed += 1
            _count(added, response)
    changes = {
        "written": len(rows),
        "completed": completed,
        "input_read": read - batch.input_read,
        "output_bytes": len(output),
        "error_bytes": len(errors),
    }
    return _Written(bytes(output), bytes(errors), changes | added)


def _response_of(row: Any) -> ItemResult | Refusal | None:
    if row is None:
        return None
    if row.state == "done" and row.result is not None:
        return read_result(row.result)
    return read_refusal(row.reason) if row.state == "dead" and row.reason else None


def _answered(id: str, custom_id: str, response: ItemResult | Refusal) -> bytes:
    answer = {
        "id": id,
        "custom_id": custom_id,
        "response": {
            "status_code": response.status,
            "request_id": response.request_id,
            "body": response.body,
        },
        "error": None,
    }
    return msgspec.json.encode(answer) + b"\n"


def _failed(id: str, custom_id: str, batch: StoredBatch, row: Any) -> bytes:
    if row is not None and row.state == "dead":
        code, message = "request_failed", row.reason or "The request failed."
    else:
        code, message = NOT_EXECUTED.get(batch.outcome, NOT_EXECUTED["cancelled"])
    error = {"code": code, "message": message}
    line = {"id": id, "custom_id": custom_id, "response": None, "error": error}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _count(added: dict[str, int], response: ItemResult | Refusal) -> None:
    try:
        usage = _responses.decode(response.body).usage or _Usage()
    except msgspec.DecodeError:
        usage = _Usage()
    given = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    made = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    counted = response if isinstance(response, ItemResult) else None
    added["input_tokens"] += (
        (counted and counted.input_tokens) or usage.prompt_tokens or usage.input_tokens or 0
    )
    added["output_tokens"] += (
        (counted and counted.output_tokens) or usage.completion_tokens or usage.output_tokens or 0
    )
    added["cached_tokens"] += given.cached_tokens or 0
    added["reasoning_tokens"] += made.reasoning_tokens or 0
