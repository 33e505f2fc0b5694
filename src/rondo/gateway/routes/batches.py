"""Batches of requests."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from rondo.control.objects.batches import NewBatch, StoredBatch
from rondo.control.objects.output import output_ids
from rondo.control.objects.pages import PageQuery
from rondo.gateway.routes.files import SECOND, list_of, objects_of
from rondo.gateway.routes.security import BatchesKey, owner_of
from rondo.gateway.routes.uploads import Life

router = APIRouter(tags=["batches"])
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class BatchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input_file_id: str = Field(min_length=1, max_length=100)
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: Life | None = None


class ShownBatch(BaseModel):
    """Times are seconds since the epoch."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: dict[str, int]
    usage: dict[str, Any]
    metadata: dict[str, str] | None
    owner: str
    """Id of the key that created it."""


class BatchList(BaseModel):
    object: str = "list"
    data: list[ShownBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("/v1/batches")
async def create_batch(
    request: Request,
    body: BatchRequest,
    key: BatchesKey,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> ShownBatch:
    """Begins a batch: each line of the input file is a request. The same `Idempotency-Key` returns the same batch."""
    await request.app.state.usage.check_quota(key)
    wanted = NewBatch(
        body.endpoint,
        body.input_file_id,
        body.completion_window,
        body.metadata,
        None
        if body.output_expires_after is None
        else body.output_expires_after.checked("output_expires_after"),
    )
    return _shown(
        await objects_of(request).batches.create(key.id, wanted, key.rights.models, idempotency_key)
    )


@router.get("/v1/batches")
async def list_batches(
    request: Request,
    key: BatchesKey,
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """Batches of the key, the newest first; an admin lists those of all keys."""
    page = await objects_of(request).batches.page(owner_of(key), PageQuery(after, limit))
    return BatchList(**list_of([_shown(each) for each in page.data], page.has_more))


@router.get("/v1/batches/{id}")
async def retrieve_batch(request: Request, id: str, key: BatchesKey) -> ShownBatch:
    """One batch."""
    return _shown(await objects_of(request).batches.get(id, owner_of(key)))


@router.post("/v1/batches/{id}/cancel")
async def cancel_batch(request: Request, id: str, key: BatchesKey) -> ShownBatch:
    """Stops a batch. Results until then are in its output file."""
    return _shown(await objects_of(request).batches.cancel(id, owner_of(key)))


def _shown(batch: StoredBatch) -> ShownBatch:
    output, errors = output_ids(batch.id)
    published = batch.ended is not None
    ended = {f"{name}_at": _seconds(batch.ended) if batch.state == name else None for name in ENDINGS}
    return ShownBatch(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=None if batch.errors is None else json.loads(batch.errors),
        input_file_id=batch.input_file,
        completion_window=batch.window,
        status=batch.state,
        output_file_id=output if published and batch.output_bytes else None,
        error_file_id=errors if published and batch.error_bytes else None,
        created_at=batch.created // SECOND,
        in_progress_at=_seconds(batch.started),
        expires_at=batch.expires // SECOND,
        finalizing_at=_seconds(batch.finalized),
        cancelling_at=_seconds(batch.cancelled),
        request_counts=batch.counts,
        usage={
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        metadata=None if batch.metadata is None else json.loads(batch.metadata),
        owner=batch.owner,
        **ended,
    )


ENDINGS = ("completed", "failed", "expired", "cancelled")


def _seconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // SECOND
