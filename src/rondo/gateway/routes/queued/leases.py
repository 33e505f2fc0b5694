"""Routes of workers: leases by long polling, heartbeats, results, and requests handed back."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from rondo.base.errors import InvalidRequest
from rondo.control.queue.leases import LEASED_AT_MOST
from rondo.control.queue.work import Leased
from rondo.gateway.queued.service import QueueService
from rondo.gateway.routes.security import AnyKey, WorkerKey
from rondo.web.http import check_json, read_body
from rondo.worker.wire import (
    FinishCall,
    FinishReply,
    HeldCall,
    HeldReply,
    LeaseCall,
    LeasedItem,
    LeaseReply,
)

router = APIRouter(tags=["workers"])
LONGEST_WAIT = 60.0
T = TypeVar("T")


class WorkerState(BaseModel):
    name: str
    models: list[str]
    held: int
    results: int
    seen: float
    """Time of the latest call, in seconds since the epoch."""


class WorkerList(BaseModel):
    object: str = "list"
    data: list[WorkerState]


@router.get("/v1/queue/workers")
async def list_workers(request: Request, key: AnyKey) -> WorkerList:
    """Workers that called this gateway in the last minutes, with the models that the key may use."""
    workers = service_of(request).live_workers()
    shown = [vars(each) | {"models": key.usable(each.models)} for each in workers]
    return WorkerList(data=[WorkerState(**each) for each in shown])


@router.post("/v1/queue/leases", openapi_extra={"requestBody": {"content": {"application/json": {}}}})
async def lease(request: Request, key: WorkerKey) -> Response:
    """Leases requests of models, adapters and aliases: `{"worker", "models", "limit", "wait", "held"}`. Waits up to
    `wait` seconds; with limit 0, only whether suspects wait."""
    service, call = service_of(request), await read_json(request, LeaseCall)
    service.check_open()
    service.note_worker(call.worker, call.models)
    limit = max(0, min(call.limit, LEASED_AT_MOST))
    suspects = False

    async def look() -> list[Leased] | None:
        nonlocal suspects
        if await request.is_disconnected():
            return []
        service.note_worker(call.worker)
        taken: list[Leased] = []
        if limit:
            taken = await service.leases.take(call.worker, call.models, limit, held=call.held)
        suspects = call.held > 0 and await service.leases.suspects(call.models)
        return taken if taken or suspects else None

    wait = min(max(0.0, call.wait), LONGEST_WAIT)
    taken = await service.store.signals.poll(call.models, wait, look) or []
    if taken and await request.is_disconnected():
        await service.leases.release([(each.id, each.lease) for each in taken])
        taken = []
    items = [
        LeasedItem(
            each.id, each.lease, each.model, each.attempts, msgspec.Raw(each.body.encode()), each.suspect
        )
        for each in taken
    ]
    return reply_of(LeaseReply(items, service.config.queue.lease, suspects))


@router.post("/v1/queue/heartbeat", openapi_extra={"requestBody": {"content": {"application/json": {}}}})
async def heartbeat(request: Request, key: WorkerKey) -> Response:
    """Renews leases: `{"worker", "held": [[id, lease], ...]}`. Returns the ids that the worker lost."""
    service, call = service_of(request), await read_json(request, HeldCall)
    held = call.held or []
    service.note_worker(call.worker, held=len(held))
    return reply_of(HeldReply(lost=await service.leases.beat(held)))


@router.post("/v1/queue/finish", openapi_extra={"requestBody": {"content": {"application/json": {}}}})
async def finish(request: Request, key: WorkerKey) -> Response:
    """Stores results and failures: `{"worker", "results": [...]}`. Returns when they are durable; may be repeated."""
    service, call = service_of(request), await read_json(request, FinishCall)
    return reply_of(FinishReply(await service.finish(call.worker, call.results)))


@router.post("/v1/queue/release", openapi_extra={"requestBody": {"content": {"application/json": {}}}})
async def release(request: Request, key: WorkerKey) -> Response:
    """Hands requests back without counting an attempt; without `held`, everything that the worker holds."""
    service, call = service_of(request), await read_json(request, HeldCall)
    if call.held is None:
        number = await service.leases.release_all(call.worker)
        service.workers.pop(call.worker, None)
    else:
        number = await service.leases.release(call.held)
    return reply_of(HeldReply(released=number))


def service_of(request: Request) -> QueueService:
    service: QueueService = request.app.state.queue
    return service


async def read_json(request: Request, kind: type[T]) -> T:
    config = service_of(request).config
    check_json(request)
    body = await read_body(
        *(request, config.queue_body_bytes, config.body_seconds),
        section="gateway",
        setting="queue_body_bytes",
    )
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The request body is not valid: {error}.", code="invalid_value") from error


def check_bytes(size: int, largest: int, param: str) -> None:
    """Refuses a request that a worker could not get, or an engine would refuse."""
    if size > largest:
        raise InvalidRequest(
            f"a request has {size:,} bytes, above gateway.max_body_bytes ({largest:,}): shorten it, or raise the "
            "setting.",
            param=param,
            code="body_too_large",
        )


def reply_of(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
