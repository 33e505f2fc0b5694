"""Conversations and their items."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from rondo.control.objects.conversations import Conversation
from rondo.control.objects.items import items_of
from rondo.control.objects.pages import Order, PageQuery
from rondo.gateway.routes.batches import Metadata
from rondo.gateway.routes.files import SECOND, Deleted, list_of, objects_of
from rondo.gateway.routes.security import InferenceKey, owner_of

router = APIRouter(tags=["conversations"])
ItemList = Annotated[list[dict[str, Any]], Field(max_length=20)]


class NewConversation(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: ItemList | None = None
    metadata: Metadata | None = None


class ConversationChange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: Metadata | None


class NewItems(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: ItemList


class ShownConversation(BaseModel):
    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str]


@router.post("/v1/conversations")
async def create_conversation(
    request: Request, key: InferenceKey, body: NewConversation | None = None
) -> ShownConversation:
    """Creates a conversation, with at most 20 items."""
    body = body or NewConversation()
    items = items_of(body.items or [], "items")
    return _shown(await objects_of(request).conversations.create(key.id, body.metadata or {}, items))


@router.get("/v1/conversations/{id}")
async def retrieve_conversation(request: Request, id: str, key: InferenceKey) -> ShownConversation:
    """One conversation, without its items."""
    return _shown(await objects_of(request).conversations.get(id, owner_of(key)))


@router.post("/v1/conversations/{id}")
async def update_conversation(
    request: Request, id: str, body: ConversationChange, key: InferenceKey
) -> ShownConversation:
    """Replaces the metadata."""
    return _shown(await objects_of(request).conversations.update(id, owner_of(key), body.metadata or {}))


@router.delete("/v1/conversations/{id}")
async def delete_conversation(request: Request, id: str, key: InferenceKey) -> Deleted:
    """Deletes a conversation with its items."""
    await objects_of(request).conversations.delete(id, owner_of(key))
    return Deleted(id=id, object="conversation.deleted")


@router.post("/v1/conversations/{id}/items")
async def add_items(request: Request, id: str, body: NewItems, key: InferenceKey) -> JSONResponse:
    """Adds at most 20 items at the end."""
    items = items_of(body.items, "items")
    await objects_of(request).conversations.add(id, owner_of(key), items)
    return JSONResponse(list_of(items, False))


@router.get("/v1/conversations/{id}/items")
async def list_items(
    request: Request,
    id: str,
    key: InferenceKey,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
) -> JSONResponse:
    """Items, the newest first."""
    page = await objects_of(request).conversations.items(id, owner_of(key), PageQuery(after, limit, order))
    return JSONResponse(list_of(page.data, page.has_more))


@router.get("/v1/conversations/{id}/items/{item}")
async def retrieve_item(request: Request, id: str, item: str, key: InferenceKey) -> JSONResponse:
    """One item."""
    return JSONResponse(await objects_of(request).conversations.item(id, owner_of(key), item))


@router.delete("/v1/conversations/{id}/items/{item}")
async def delete_item(request: Request, id: str, item: str, key: InferenceKey) -> ShownConversation:
    """Deletes an item."""
    return _shown(await objects_of(request).conversations.delete_item(id, owner_of(key), item))


def _shown(conversation: Conversation) -> ShownConversation:
    return ShownConversation(
        id=conversation.id,
        created_at=conversation.created // SECOND,
        metadata=json.loads(conversation.metadata),
    )
