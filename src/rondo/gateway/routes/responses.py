"""Stored responses: list, retrieve, input items, cancel, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response, StreamingResponse

from rondo.control.objects.items import page_of_items
from rondo.control.objects.pages import Order, PageQuery
from rondo.control.objects.responses import RUNNING, StoredResponse
from rondo.control.store.clock import MICROSECONDS
from rondo.gateway.queued.objects import Objects
from rondo.gateway.routes.files import Deleted, list_of, objects_of
from rondo.gateway.routes.security import InferenceKey, owner_of
from rondo.web.http import event_of

router = APIRouter(tags=["responses"])
PATH = "/v1/responses"
FIRST_POLL, LONGEST_POLL = 0.05, 2.0
SHOWN = 200
"""Characters of a text in a list."""


class ResponseSummary(BaseModel):
    """A stored response without its items; `input` and `output` are the beginnings of their texts."""

    id: str
    object: str = "response"
    created_at: int
    """Seconds since the epoch."""
    expires_at: int | None
    owner: str
    status: str
    model: str
    input: str
    output: str
    previous_response_id: str | None
    conversation: str | None
    background: bool
    usage: dict[str, Any] | None


class ResponseList(BaseModel):
    object: str = "list"
    data: list[ResponseSummary]
    has_more: bool


@router.get(PATH)
async def list_responses(
    request: Request,
    key: InferenceKey,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
) -> ResponseList:
    """Stored responses of the key, the newest first. OpenAI's API has no such list."""
    query = PageQuery(after, limit, order)
    page = await objects_of(request).responses.page(owner_of(key), query)
    data = await asyncio.to_thread(lambda: [_summary(each) for each in page.data])  # bodies may be megabytes
    return ResponseList(data=data, has_more=page.has_more)


@router.get("/v1/responses/{id}")
async def retrieve_response(
    request: Request,
    id: str,
    key: InferenceKey,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """A stored response; with `stream` as events, which wait until a response in the background has ended."""
    objects, owner = objects_of(request), owner_of(key)
    stored = await objects.responses.get(id, owner)
    if not stream:
        return JSONResponse(stored.body)
    return StreamingResponse(_events(objects, id, owner, starting_after), media_type="text/event-stream")


@router.delete("/v1/responses/{id}")
async def delete_response(request: Request, id: str, key: InferenceKey) -> Deleted:
    """Deletes a response. Responses that continue it can no longer be continued."""
    await objects_of(request).responses.delete(id, owner_of(key))
    return Deleted(id=id, object="response")


@router.post("/v1/responses/{id}/cancel")
async def cancel_response(request: Request, id: str, key: InferenceKey) -> JSONResponse:
    """Cancels a response in the background."""
    return JSONResponse((await objects_of(request).responses.cancel(id, owner_of(key))).body)


@router.get("/v1/responses/{id}/input_items")
async def input_items(
    request: Request,
    id: str,
    key: InferenceKey,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
) -> JSONResponse:
    """Items of the request's input, without those of earlier responses."""
    stored = await objects_of(request).responses.get(id, owner_of(key))
    page = page_of_items(stored.input_items, PageQuery(after, limit, order))
    return JSONResponse(list_of(page.data, page.has_more))


def _summary(stored: StoredResponse) -> ResponseSummary:
    body = stored.body
    return ResponseSummary(
        id=stored.id,
        created_at=stored.created // MICROSECONDS,
        expires_at=None if stored.expires is None else stored.expires // MICROSECONDS,
        owner=stored.owner,
        status=stored.state,
        model=str(body.get("model") or ""),
        input=_beginning(stored.input_items),
        output=_beginning(body.get("output") or []),
        previous_response_id=stored.previous,
        conversation=stored.conversation,
        background=bool(body.get("background")),
        usage=body.get("usage"),
    )


def _beginning(items: list[dict[str, Any]]) -> str:
    """Of the texts of the last message."""
    for item in reversed(items):
        content = item.get("content")
        if isinstance(content, str):
            return content[:SHOWN]
        texts = [str(part.get("text") or "") for part in content or [] if isinstance(part, dict)]
        if any(texts):
            return " ".join(texts)[:SHOWN]
    return ""


async def _events(objects: Objects, id: str, owner: str | None, after: int) -> AsyncGenerator[bytes, None]:
    pause = FIRST_POLL
    """Ends early when the gateway closes: the client continues with `starting_after`."""
    while (stored := await objects.responses.get(id, owner)).state in RUNNING:
        if objects.store.signals.closing:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_POLL)
        yield b": waiting\n\n"
    for number, event in enumerate(_events_of(stored.body)):
        if number > after:
            yield event_of(event | {"sequence_number": number}, event["type"])


def _events_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, with each item's content in one piece."""
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for place, item in enumerate(response.get("output") or []):
        where = {"output_index": place, "item_id": item.get("id")}
        empty = item | ({"content": []} if item.get("type") == "message" else {})
        events.append({"type": "response.output_item.added", "output_index": place, "item": empty})
        if item.get("type") == "message":
            for index, part in enumerate(item.get("content") or []):
                events += _events_of_part(part, where | {"content_index": index})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    status = response.get("status")
    last = status if status in ("completed", "incomplete", "failed") else "failed"
    return [*events, {"type": f"response.{last}", "response": response}]


def _events_of_part(part: dict[str, Any], where: dict[str, Any]) -> list[dict[str, Any]]:
    if part.get("type") != "output_text":
        return []
    text, logprobs = part.get("text", ""), part.get("logprobs") or []
    empty = part | {"text": ""}
    return [
        {"type": "response.content_part.added", **where, "part": empty},
        {"type": "response.output_text.delta", **where, "delta": text, "logprobs": logprobs},
        {"type": "response.output_text.done", **where, "text": text, "logprobs": logprobs},
        {"type": "response.content_part.done", **where, "part": part},
    ]
