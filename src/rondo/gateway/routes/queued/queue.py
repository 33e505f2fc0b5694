"""The native queue API: groups of requests to any model route, their results, dead letters and summary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from rondo.base.errors import NotFound
from rondo.client.protocol.item import read_refusal
from rondo.control.queue.views import QueuedRow, dead_letters, lots, row_of
from rondo.control.queue.work import Group, parted
from rondo.control.store.clock import MICROSECONDS
from rondo.gateway.queued.service import QueueService
from rondo.gateway.routes.queued.leases import (
    LONGEST_WAIT,
    check_bytes,
    read_json,
    reply_of,
    service_of,
)
from rondo.gateway.routes.security import QueueKey, owner_of

router = APIRouter(tags=["queue"])
BODY: dict[str, Any] = {"requestBody": {"content": {"application/json": {}}}}
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


class QueueItem(msgspec.Struct):
    path: str
    body: msgspec.Raw
    priority: int = 0


class GroupCall(msgspec.Struct):
    """`sealed`: no more requests will be added."""

    items: list[QueueItem] = []
    sealed: bool = True


class ExtendCall(msgspec.Struct):
    """`at`: number of requests that the group has, so that a repetition adds nothing twice."""

    at: int
    items: list[QueueItem] = []
    seal: bool = False


class ShownGroup(BaseModel):
    id: str
    object: str = "queue.group"
    owner: str
    total: int
    unfinished: int
    sealed: bool
    created: float
    """Seconds since the epoch."""
    ended: float | None


class GroupList(BaseModel):
    object: str = "list"
    data: list[ShownGroup]
    has_more: bool


class DeadLetter(BaseModel):
    id: str
    model: str
    attempts: int
    worker: str | None
    reason: str
    status: int | None
    """Status of the engine's refusal, if it refused the request."""


class DeadLetterList(BaseModel):
    object: str = "list"
    data: list[DeadLetter]
    has_more: bool


class LotState(BaseModel):
    model: str
    owner: str
    priority: int
    state: str
    number: int


class RateState(BaseModel):
    seconds: float
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    flops_per_second: float


class QueueSummary(BaseModel):
    models: dict[str, dict[str, int]]
    """Number of requests by model and state."""
    waiting: list[LotState]
    """Requests that wait or are leased, by base model, owner and priority."""
    rates: RateState
    """Results that this gateway received in the last minute."""
    workers: int
    dead: int


class Changed(BaseModel):
    """Number of requests that changed."""

    changed: int


@router.get("/v1/queue")
async def summary(request: Request, key: QueueKey) -> QueueSummary:
    """Counts by model, owner and priority, and rates of the gateway. An admin's key shows all owners."""
    service = service_of(request)
    own = owner_of(key)
    states, waiting = await asyncio.gather(
        asyncio.wrap_future(service.queue.counts(own)), asyncio.wrap_future(lots(service.store, own))
    )
    models: dict[str, dict[str, int]] = {}
    for (model, state), number in sorted(states.items()):
        models.setdefault(model, {})[state] = number
    sums, seconds = service.rates.window()
    return QueueSummary(
        models=models,
        waiting=[
            LotState(
                model=each.base,
                owner=each.owner,
                priority=each.priority,
                state=each.state,
                number=each.number,
            )
            for each in waiting
        ],
        rates=RateState(
            seconds=seconds,
            requests_per_second=sums.requests / seconds,
            input_tokens_per_second=sums.input_tokens / seconds,
            output_tokens_per_second=sums.output_tokens / seconds,
            flops_per_second=sums.flops / seconds,
        ),
        workers=len(service.live_workers()),
        dead=sum(number for (_, state), number in states.items() if state == "dead"),
    )


@router.post("/v1/queue/groups", status_code=201, openapi_extra=BODY)
async def create_group(request: Request, key: QueueKey, idempotency_key: IdempotencyKey = None) -> Response:
    """Stores requests durably: `{"items": [{"path", "body", "priority"}], "sealed": true}`. A repetition with the same
    `Idempotency-Key` returns the group that exists."""
    service, call = service_of(request), await read_json(request, GroupCall)
    requests = service.requests_of(key, _given(service, call.items))
    group = await service.put(key, requests, idempotency_key, call.sealed)
    return reply_of(_shown(group).model_dump(), 201)


@router.get("/v1/queue/groups")
async def list_groups(
    request: Request,
    key: QueueKey,
    before: Annotated[
        float | None, Query(description="`created` of the last group of the page before")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> GroupList:
    """Groups, the newest first; an admin's key shows all owners."""
    owner = owner_of(key)
    edge = None if before is None else round(before * MICROSECONDS)
    found = await service_of(request).queue.groups(owner, edge, limit + 1)
    return GroupList(data=[_shown(each) for each in found[:limit]], has_more=len(found) > limit)


@router.get("/v1/queue/groups/{id}")
async def show_group(
    request: Request,
    id: str,
    key: QueueKey,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for its end")] = 0.0,
) -> ShownGroup:
    """A group, with the number of its unfinished requests."""
    service = service_of(request)
    group = await service.group(key, id)
    return _shown(group if not wait or group.ended is not None else await service.wait(id, wait))


@router.post("/v1/queue/groups/{id}/items", openapi_extra=BODY)
async def extend_group(request: Request, id: str, key: QueueKey) -> Response:
    """Adds requests to a group that is not sealed: `{"at", "items", "seal"}`."""
    service, call = service_of(request), await read_json(request, ExtendCall)
    await service.group(key, id)
    await service.usage.check_quota(key)
    requests = service.requests_of(key, _given(service, call.items))
    return reply_of(_shown(await service.queue.extend(id, call.at, requests, seal=call.seal)).model_dump())


@router.get("/v1/queue/groups/{id}/results")
async def results(
    request: Request,
    id: str,
    key: QueueKey,
    after: Annotated[int, Query(ge=-1, description="place of the last result of the page before")] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    wait: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for the first one")
    ] = 0.0,
) -> Response:
    """Results in the order of submission, up to the first request that has not ended."""
    service = service_of(request)
    await service.group(key, id)
    rows = await service.results(id, after, limit, wait)
    return reply_of({"object": "list", "data": [_result(row) for row in rows]})


@router.post("/v1/queue/groups/{id}/cancel")
async def cancel_group(request: Request, id: str, key: QueueKey) -> ShownGroup:
    """Cancels requests that have not ended. Workers drop them at their next heartbeat."""
    service = service_of(request)
    await service.group(key, id)
    return _shown(await service.queue.cancel(id))


@router.post("/v1/queue/groups/{id}/retry")
async def retry_group(request: Request, id: str, key: QueueKey) -> Changed:
    """Returns the dead letters of a group to the queue."""
    service = service_of(request)
    await service.group(key, id)
    await service.usage.check_quota(key)
    return Changed(changed=await service.queue.revive(id))


@router.get("/v1/queue/requests/{id}")
async def show_request(request: Request, id: str, key: QueueKey) -> Response:
    """One request with its result or its reason."""
    service = service_of(request)
    await service.group(key, _group_of(id))
    row, queued = await asyncio.gather(
        asyncio.wrap_future(row_of(service.store, id)), asyncio.wrap_future(service.queue.request(id))
    )
    shown = _result(row) | {"worker": row.worker, "item": msgspec.Raw(queued.body.encode())}
    return reply_of(shown)


@router.get("/v1/queue/dead")
async def list_dead(
    request: Request,
    key: QueueKey,
    before: Annotated[str | None, Query(description="last id of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeadLetterList:
    """Dead letters with their reasons, the newest first; an admin's key shows all owners."""
    owner = owner_of(key)
    found = await dead_letters(service_of(request).store, owner, before, limit + 1)
    return DeadLetterList(data=[_dead(row) for row in found[:limit]], has_more=len(found) > limit)


@router.post("/v1/queue/requests/{id}/retry")
async def retry_request(request: Request, id: str, key: QueueKey) -> Changed:
    """Returns one dead letter to the queue."""
    service = service_of(request)
    group = _group_of(id)
    await service.group(key, group)
    await service.usage.check_quota(key)
    return Changed(changed=await service.queue.revive(group, (parted(id) or ("", 0))[1]))


@router.post("/v1/queue/clear")
async def clear(request: Request, key: QueueKey) -> Changed:
    """Cancels waiting requests: those of the key, or with an admin's key all."""
    return Changed(changed=await service_of(request).queue.clear(owner_of(key)))


def _given(service: QueueService, items: Sequence[QueueItem]) -> Iterator[tuple[str, bytes, int]]:
    largest = service.config.max_body_bytes
    for place, each in enumerate(items):
        check_bytes(len(bytes(each.body)), largest, f"items.{place}.body")
        yield each.path, bytes(each.body), each.priority


def _group_of(id: str) -> str:
    both = parted(id)
    if both is None:
        raise NotFound(f"there is no request {id!r}", param="id")
    return both[0]


def _shown(group: Group) -> ShownGroup:
    return ShownGroup(
        id=group.name,
        owner=group.owner,
        total=group.total,
        unfinished=group.unfinished,
        sealed=group.sealed,
        created=group.created / MICROSECONDS,
        ended=None if group.ended is None else group.ended / MICROSECONDS,
    )


def _result(row: QueuedRow) -> dict[str, Any]:
    """`result` is an ItemResult; `error` is the engine's refusal, or a reason."""
    shown: dict[str, Any] = {
        "id": row.id,
        "place": row.place,
        "model": row.model,
        "state": row.state,
        "attempts": row.attempts,
        "result": None if row.result is None else msgspec.Raw(row.result.encode()),
        "error": None,
    }
    if row.state != "done" and row.reason is not None:
        refusal = read_refusal(row.reason)
        shown["error"] = {"reason": row.reason} if refusal is None else refusal
    return shown


def _dead(row: QueuedRow) -> DeadLetter:
    refusal = read_refusal(row.reason or "")
    return DeadLetter(
        id=row.id,
        model=row.model,
        attempts=row.attempts,
        worker=row.worker,
        reason=(row.reason or "") if refusal is None else bytes(refusal.body).decode(),
        status=None if refusal is None else refusal.status,
    )
