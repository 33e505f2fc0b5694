"""Stored chat completions: list, retrieve, messages, update, delete."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from rondo.control.objects.completions import CompletionFilter
from rondo.control.objects.items import page_of_items
from rondo.control.objects.pages import Order, PageQuery
from rondo.gateway.routes.batches import Metadata
from rondo.gateway.routes.files import Deleted, list_of, objects_of
from rondo.gateway.routes.security import InferenceKey, owner_of

router = APIRouter(tags=["chat completions"])
METADATA = re.compile(r"metadata\[(.{1,64})\]")
FILTER: dict[str, Any] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "style": "deepObject",
            "explode": True,
            "description": "metadata[NAME]=VALUE: completions whose metadata have these values",
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ]
}
After = Annotated[str | None, Query(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=100)]


class CompletionChange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: Metadata | None


@router.get("/v1/chat/completions", openapi_extra=FILTER)
async def list_completions(
    request: Request,
    key: InferenceKey,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
    model: str | None = None,
) -> JSONResponse:
    """Stored chat completions, the oldest first."""
    found = ((METADATA.fullmatch(name), value) for name, value in request.query_params.multi_items())
    wanted = CompletionFilter(model, {match[1]: value for match, value in found if match is not None})
    query = PageQuery(after, limit, order)
    page = await objects_of(request).completions.page(owner_of(key), query, wanted)
    return JSONResponse(list_of(page.data, page.has_more))


@router.get("/v1/chat/completions/{id}")
async def retrieve_completion(request: Request, id: str, key: InferenceKey) -> JSONResponse:
    """A stored chat completion."""
    return JSONResponse(await objects_of(request).completions.get(id, owner_of(key)))


@router.post("/v1/chat/completions/{id}")
async def update_completion(
    request: Request, id: str, body: CompletionChange, key: InferenceKey
) -> JSONResponse:
    """Replaces the metadata."""
    changed = await objects_of(request).completions.update(id, owner_of(key), body.metadata or {})
    return JSONResponse(changed)


@router.delete("/v1/chat/completions/{id}")
async def delete_completion(request: Request, id: str, key: InferenceKey) -> Deleted:
    """Deletes a stored chat completion."""
    await objects_of(request).completions.delete(id, owner_of(key))
    return Deleted(id=id, object="chat.completion.deleted")


@router.get("/v1/chat/completions/{id}/messages")
async def list_messages(
    request: Request,
    id: str,
    key: InferenceKey,
    after: After = None,
    limit: Limit = 20,
    order: Order = "asc",
) -> JSONResponse:
    """Messages of the request."""
    messages = await objects_of(request).completions.messages(id, owner_of(key))
    page = page_of_items(messages, PageQuery(after, limit, order))
    return JSONResponse(list_of(page.data, page.has_more))
