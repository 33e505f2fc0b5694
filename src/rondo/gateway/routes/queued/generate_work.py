"""The generate API, part three: ScalarLM's routes for workers, on leases.

Its workers state neither a name nor a lease: their requests are leased for half an hour, and a result counts under the
lease that its request has.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.item import read_item, result_text
from rondo.control.queue.leases import LONGEST_LEASE
from rondo.control.queue.views import waiting_bases
from rondo.control.queue.work import Finished, Leased
from rondo.gateway.queued.prompts import result_of_work, work_of
from rondo.gateway.queued.rates import Sums
from rondo.gateway.queued.service import QueueService
from rondo.gateway.routes.queued.leases import read_json, service_of
from rondo.gateway.routes.security import WorkerKey

router = APIRouter(tags=["generate"])
WORKER = "generate-worker"
POLL_SECONDS = 30.0
JSON: dict[str, Any] = {"requestBody": {"content": {"application/json": {}}}}


class WorkCall(msgspec.Struct):
    batch_size: int
    loaded_adaptor_count: int = 0
    models: list[str] | None = None
    """Names of models and adapters; by default all that have waiting requests."""
    worker: str = WORKER
    wait: float = POLL_SECONDS


class AdaptorCall(msgspec.Struct):
    loaded_adaptor_count: int = 0


class FinishWorkCall(msgspec.Struct):
    requests: list[dict[str, Any]]
    worker: str = WORKER


@router.post("/v1/generate/get_work", openapi_extra=JSON)
async def get_work(request: Request, key: WorkerKey) -> dict[str, Any]:
    """Leases requests, and lists adapters beyond the number that the worker has loaded."""
    service, call = service_of(request), await read_json(request, WorkCall)
    service.check_open()
    limit = max(1, call.batch_size)

    async def look() -> list[Leased] | None:
        if await request.is_disconnected():
            return []
        bases = call.models if call.models is not None else await waiting_bases(service.store)
        return await service.leases.take(call.worker, bases, limit, LONGEST_LEASE) or None

    wait = min(max(0.0, call.wait), POLL_SECONDS)
    taken = await service.store.signals.poll(call.models or (), wait, look) or []
    if taken and await request.is_disconnected():
        await service.leases.release([(each.id, each.lease) for each in taken])
        taken = []
    service.note_worker(call.worker, call.models, len(taken))
    return {
        "requests": [work_of(each) for each in taken],
        "new_adaptors": _adaptors(service, call.loaded_adaptor_count),
    }


@router.post("/v1/generate/finish_work", openapi_extra=JSON)
async def finish_work(request: Request, key: WorkerKey) -> dict[str, list[str]]:
    """Stores results and errors. An error is final. Returns when they are durable."""
    service, call = service_of(request), await read_json(request, FinishWorkCall)
    finished, sums = [], Sums()
    leases = await service.leases.held([_id(each) for each in call.requests])
    for each in call.requests:
        id = _id(each)
        lease, body = leases.get(id, ("", ""))
        lease = str(each.get("lease") or lease)
        if (error := each.get("error")) is not None:
            finished.append(Finished(id, lease, error=str(error)))
            continue
        result = result_of_work(read_item(body).path if body else "", each)
        finished.append(
            Finished(id, lease, result_text(result), None, False, result.input_tokens, result.output_tokens)
        )
        sums.add(Sums(1, result.input_tokens, result.output_tokens, result.flops or 0.0))
    verdicts = await service.leases.finish(finished)
    service.rates.add(sums)
    service.note_worker(call.worker).results += sum(verdict == "done" for verdict in verdicts)
    return {"verdicts": list(verdicts)}


@router.post("/v1/generate/get_adaptors", openapi_extra=JSON)
async def get_adaptors(request: Request, key: WorkerKey) -> dict[str, list[str]]:
    """Adapters beyond the number that the worker has loaded."""
    service, call = service_of(request), await read_json(request, AdaptorCall)
    return _adaptors(service, call.loaded_adaptor_count)


def _adaptors(service: QueueService, loaded: int) -> dict[str, list[str]]:
    names = [card["id"] for card in service.fleet.models() if card.get("parent")]
    return {"new_adaptors": names[max(0, loaded) :]}


def _id(done: dict[str, Any]) -> str:
    id = done.get("request_id")
    if not isinstance(id, str):
        raise InvalidRequest("each result needs its request_id.", param="request_id")
    return id
