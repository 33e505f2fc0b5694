"""The generate API, part two: whole files of prompts, and the browser of submissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from itertools import islice
from typing import Annotated, Any, BinaryIO

import msgspec
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response
from starlette.types import Message

from rondo.base.errors import InvalidRequest, StorageError
from rondo.client.protocol.item import read_item
from rondo.control.key import Key
from rondo.control.queue.views import rows_from
from rondo.control.queue.work import Group, New, QueuedRequest, parted
from rondo.control.store.clock import MICROSECONDS
from rondo.gateway.queued.arrays import array_elements
from rondo.gateway.queued.prompts import CHAT, EMBEDDINGS, download_of, shown_result
from rondo.gateway.queued.service import QueueService
from rondo.gateway.queued.streams import streamed
from rondo.gateway.routes.queued.generate import SHOWN_AT_A_TIME, requests_of
from rondo.gateway.routes.queued.leases import read_json, service_of
from rondo.gateway.routes.security import QueueKey, owner_of
from rondo.web.errors import BodyTooLarge

router = APIRouter(tags=["generate"])
AT_A_TIME = 1000
SHOWN_BYTES = 5 << 20
SHOWN_ROWS = 1000
PREVIEW = 120


class DownloadCall(msgspec.Struct):
    request_id: str
    wait: float | None = None


class SubmissionRow(BaseModel):
    request_id: str
    mtime: float
    """Time of submission, in seconds since the epoch."""
    size_bytes: int
    """Of the first request."""
    request_count: int
    status: str
    completed_at: float | None
    model: str | None
    request_type: str | None
    prompt_preview: str
    has_response: bool


class SubmissionList(BaseModel):
    rows: list[SubmissionRow]
    next_cursor: float | None
    has_more: bool


@router.post("/v1/generate/upload")
async def upload(
    request: Request,
    key: QueueKey,
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)] = None,
) -> dict[str, str | None]:
    """Queues the requests of a file, a JSON array of objects: multipart field `file`. A repetition with the same
    `Idempotency-Key` continues after the requests that are stored."""
    service = service_of(request)
    try:
        form = await _limited(request, service.config.upload_bytes).form(max_files=1, max_fields=10)
        try:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise InvalidRequest("the form has no file: send it as the field 'file'.", param="file")
            return {"request_id": await _store(service, key, file.file, idempotency_key), "error": None}
        finally:
            await form.close()
    except OSError as error:
        raise StorageError(f"the file could not be stored: {error.strerror or error}.") from error


async def _store(service: QueueService, key: Key, file: BinaryIO, idempotency_key: str | None) -> str:
    elements = array_elements(file, service.config.max_body_bytes)
    group: Group | None = None
    try:
        while True:
            chunk = await asyncio.to_thread(_queued, service, key, elements)
            if group is None:
                group = await service.put(key, chunk, idempotency_key, sealed=False)
                at = len(chunk)
            else:
                missing = chunk[max(0, group.total - at) :]
                if missing:
                    await service.usage.check_quota(key)
                    group = await service.queue.extend(group.name, group.total, missing)
                at += len(chunk)
            if len(chunk) < AT_A_TIME:
                if not group.sealed:
                    group = await service.queue.extend(group.name, group.total, [], seal=True)
                return group.name
    except BaseException:
        if group is not None and idempotency_key is None:
            await service.queue.cancel(group.name)
        raise


def _queued(service: QueueService, key: Key, elements: Iterator[Any]) -> list[New]:
    chunk = list(islice(elements, AT_A_TIME))
    if not chunk:
        return []
    if any(not isinstance(each, dict) for each in chunk):
        raise InvalidRequest(
            'each element of the file is an object, such as {"prompt": "..."}.', param="file"
        )
    named = all(each.get("model") for each in chunk)
    return requests_of(service, key, chunk, {}, "" if named else service.default_model())


def _limited(request: Request, limit: int) -> Request:
    declared = request.headers.get("content-length", "")
    received = 0

    def check(size: int) -> None:
        if size > limit:
            raise BodyTooLarge(
                f"the file is larger than {limit:,} bytes (gateway.upload_bytes): split it.",
                code="body_too_large",
            )

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        check(received)
        return message

    check(int(declared) if declared.isdigit() else 0)
    return Request(request.scope, receive)


@router.post("/v1/generate/download")
async def download(request: Request, key: QueueKey) -> Response:
    """All results of a submission when it has ended; null if it has not within `wait` seconds."""
    service, call = service_of(request), await read_json(request, DownloadCall)
    await service.group(key, call.request_id)
    most = service.config.wait_seconds
    group = await service.wait(call.request_id, most if call.wait is None else min(call.wait, most))
    if group.ended is None:
        return JSONResponse(None)
    begin, end = download_of(group)
    return await streamed(begin, _downloaded(service, group), end)


async def _downloaded(service: QueueService, group: Group) -> AsyncGenerator[bytes, None]:
    """Members of the object of results."""
    after = -1
    while rows := await rows_from(service.store, group.name, after, SHOWN_AT_A_TIME):
        after = rows[-1].place
        for row in rows:
            shown = shown_result(row) | {"is_acked": True}
            yield msgspec.json.encode(row.id) + b":" + msgspec.json.encode(shown)


@router.get("/v1/generate/list_requests")
async def list_requests(
    request: Request,
    key: QueueKey,
    cursor: Annotated[float | None, Query(description="`next_cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> SubmissionList:
    """Submissions, the newest first."""
    service = service_of(request)
    owner = owner_of(key)
    edge = None if cursor is None else round(cursor * MICROSECONDS)
    found = await service.queue.groups(owner, edge, limit + 1)
    shown = found[:limit]
    firsts = await asyncio.gather(
        *(asyncio.wrap_future(service.queue.requests(each.name, -1, 1)) for each in shown)
    )
    rows = [_row(group, first[0] if first else None) for group, first in zip(shown, firsts)]
    more = len(found) > limit
    return SubmissionList(rows=rows, next_cursor=rows[-1].mtime if more else None, has_more=more)


@router.get("/v1/generate/request/{id}")
async def show_request(request: Request, id: str, key: QueueKey) -> dict[str, Any]:
    """Requests and results of one submission, or of one of its requests."""
    service = service_of(request)
    both = parted(id)
    group = await service.group(key, id if both is None else both[0])
    after = -1 if both is None else both[1] - 1
    limit = SHOWN_ROWS + 1 if both is None else 1
    queued, rows = await asyncio.gather(
        asyncio.wrap_future(service.queue.requests(group.name, after, limit)),
        asyncio.wrap_future(rows_from(service.store, group.name, after, limit)),
    )
    return {
        "request_id": id,
        "request": _bounded([len(each.body) for each in queued], lambda: [_item(each) for each in queued]),
        "response": _bounded(
            [len(row.result or "") for row in rows], lambda: {row.id: shown_result(row) for row in rows}
        ),
        "status": _status(group),
        "request_mtime": group.created / MICROSECONDS,
        "response_mtime": None if group.ended is None else group.ended / MICROSECONDS,
    }


def _bounded(sizes: list[int], show: Any) -> Any:
    if len(sizes) > SHOWN_ROWS or sum(sizes) > SHOWN_BYTES:
        return {"error": "too large to display", "size_bytes": sum(sizes)}
    return show()


def _item(request: QueuedRequest) -> dict[str, Any]:
    item = read_item(request.body)
    body = _decoded(item.body)
    shown = bytes(item.body).decode() if body is None else body
    return {"request_id": request.id, "path": item.path, "body": shown}


def _status(group: Group) -> dict[str, Any]:
    return {
        "status": "in_progress" if group.ended is None else "completed",
        "current_index": group.total - group.unfinished,
        "total_requests": group.total,
        "work_queue_id": group.name,
        "completed_at": None if group.ended is None else group.ended / MICROSECONDS,
    }


def _row(group: Group, first: QueuedRequest | None) -> SubmissionRow:
    item = None if first is None else read_item(first.body)
    path = None if item is None else item.path
    ended = None if group.ended is None else group.ended / MICROSECONDS
    return SubmissionRow(
        request_id=group.name,
        mtime=group.created / MICROSECONDS,
        size_bytes=0 if first is None else len(first.body),
        request_count=group.total,
        status="in_progress" if ended is None else "completed",
        completed_at=ended,
        model=None if first is None else first.model,
        request_type=None if path is None else "embed" if path == EMBEDDINGS else "generate",
        prompt_preview="" if item is None else _preview(item.path, _decoded(item.body)),
        has_response=group.unfinished < group.total,
    )


def _decoded(body: msgspec.Raw) -> Any:
    """None for numbers and nesting that Python cannot represent: only the engine validates a queued body."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _preview(path: str, body: object) -> str:
    if not isinstance(body, dict):
        return ""
    prompt = body.get("prompt", body.get("input"))
    messages = body.get("messages")
    if path == CHAT and messages:
        last = messages[-1] if isinstance(messages, list) else messages
        prompt = last.get("content") if isinstance(last, dict) else last
    return (prompt if isinstance(prompt, str) else str(prompt or ""))[:PREVIEW]
