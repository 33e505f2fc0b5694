"""The generate API, compatible with ScalarLM's clients: `/v1/generate` and the routes below it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response, StreamingResponse

from rondo.base.errors import InvalidRequest
from rondo.control.key import Key
from rondo.control.queue.views import ended_at, rows_at
from rondo.control.queue.work import Group, New, parted, request_id, signal_of
from rondo.gateway.queued.prompts import OWN, path_and_body, shown_result
from rondo.gateway.queued.service import QueueService
from rondo.gateway.queued.streams import map_encoded, streamed
from rondo.gateway.routes.queued.leases import check_bytes, service_of
from rondo.gateway.routes.security import QueueKey, owner_of
from rondo.web.http import DONE, check_json, event_of, read_body, with_signs

router = APIRouter(tags=["generate"])
AT_A_TIME = 1000
SHOWN_AT_A_TIME = 100
Call = TypeVar("Call", bound=BaseModel)
ENDPOINTS = (
    *(
        "",
        "/get_results",
        "/get_work",
        "/finish_work",
        "/get_adaptors",
        "/upload",
        "/download",
        "/clear_queue",
    ),
    *("/metrics", "/list_requests", "/request/{request_id}", "/endpoints"),
)


class GenerateCall(BaseModel):
    """Prompts, each a text, `{"prompt"}`, `{"messages"}` or `{"text", "images"}`. Further fields pass to the engine."""

    model_config = ConfigDict(extra="allow")
    prompts: list[str | dict[str, Any]]
    model: str | None = None
    max_tokens: int | None = 16
    temperature: float | None = 0.0
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    wait: Annotated[float | None, Field(ge=0)] = None
    """Longest time until the response in seconds; 0 returns the ids at once."""
    stream: bool = False
    """Server-sent events: each result as it arrives."""
    priority: int = 0


class ResultsCall(BaseModel):
    """Ids of requests, or of whole submissions."""

    request_ids: list[str]
    wait: Annotated[float | None, Field(ge=0)] = None


def _body(kind: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}}}


STREAMED: dict[str, Any] = {"responses": {"200": {"content": {"text/event-stream": {"schema": {}}}}}}


@router.post("/v1/generate", openapi_extra=_body(GenerateCall) | STREAMED)
@router.post("/generate", openapi_extra=_body(GenerateCall) | STREAMED)
async def generate(
    request: Request,
    key: QueueKey,
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)] = None,
) -> Any:
    """Queues prompts durably and waits for their results; those without one yet have the response null."""
    service = service_of(request)
    call = await _read(request, GenerateCall)
    model = call.model or service.default_model()
    given = call.model_dump(exclude_unset=True)
    common = {name: value for name, value in given.items() if name not in OWN}
    queued = requests_of(service, key, call.prompts, common, model, call.priority)
    group = await service.put(key, queued, idempotency_key)
    places = range(group.total)
    if call.stream:
        events = with_signs(_events(service, group.name, places))
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
    shown = _shown(service, group.name, places, _end(service, call.wait))
    return await streamed(b'{"results":[', map_encoded(shown), b"]}")


@router.post("/v1/generate/get_results", openapi_extra=_body(ResultsCall))
async def get_results(request: Request, key: QueueKey) -> Response:
    """Results of requests; waits until they have ended, up to `wait` seconds."""
    service = service_of(request)
    call = await _read(request, ResultsCall)
    groups: dict[str, Group] = {}
    wanted: dict[str, dict[int, None] | None] = {}
    """Places in each group; None: all of them."""
    for id in call.request_ids:
        both = parted(id)
        name = id if both is None else both[0]
        if name not in groups:
            groups[name] = await service.group(key, name)
            wanted[name] = {}
        places = wanted[name]
        if both is None:
            wanted[name] = None
        elif places is not None:
            places[both[1]] = None
    end = _end(service, call.wait)

    async def shown() -> AsyncGenerator[dict[str, Any], None]:
        for name, some in wanted.items():
            places = range(groups[name].total) if some is None else list(some)
            async for each in _shown(service, name, places, end):
                yield each

    return await streamed(b'{"results":[', map_encoded(shown()), b"]}")


@router.get("/v1/generate/metrics")
async def metrics(request: Request, key: QueueKey) -> dict[str, float]:
    """Length of the queue, of the key or with an admin's key of all owners, and rates of the gateway's last minute."""
    service = service_of(request)
    counts = await service.queue.counts(owner_of(key))
    sums, seconds = service.rates.window()
    waiting = sum(number for (_, state), number in counts.items() if state in ("queued", "leased", "resting"))
    return {
        "queue_depth": waiting,
        "requests": sums.requests,
        "tokens": sums.tokens,
        "total_time": seconds,
        "token/s": sums.tokens / seconds,
        "request/s": sums.requests / seconds,
        "flop/s": sums.flops / seconds,
    }


@router.post("/v1/generate/clear_queue")
async def clear_queue(request: Request, key: QueueKey) -> dict[str, int]:
    """Cancels waiting requests: those of the key, or with an admin's key all."""
    owner = owner_of(key)
    return {"cancelled": await service_of(request).queue.clear(owner)}


@router.get("/v1/generate/endpoints")
async def endpoints(key: QueueKey) -> dict[str, list[str]]:
    """Routes of the generate API."""
    return {"endpoints": [f"/v1/generate{path}" for path in ENDPOINTS]}


def requests_of(
    service: QueueService,
    key: Key,
    prompts: Iterable[object],
    common: dict[str, Any],
    model: str,
    priority: int = 0,
) -> list[New]:
    def item(prompt: object) -> tuple[str, bytes, int]:
        own = prompt.get("model") if isinstance(prompt, dict) else None
        path, body = path_and_body(prompt, common, own if isinstance(own, str) and own else model)
        check_bytes(len(body), service.config.max_body_bytes, "prompts")
        return path, body, priority

    return service.requests_of(key, map(item, prompts))


async def _read(request: Request, kind: type[Call]) -> Call:
    config = service_of(request).config
    check_json(request)
    body = await read_body(
        *(request, config.queue_body_bytes, config.body_seconds),
        section="gateway",
        setting="queue_body_bytes",
    )
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}." if place else f"{first['msg']}."
        raise InvalidRequest(message, param=place or None, code="invalid_value") from None


def _end(service: QueueService, wait: float | None) -> float:
    most = service.config.wait_seconds
    return time.monotonic() + (most if wait is None else min(wait, most))


async def _shown(
    service: QueueService, name: str, places: Sequence[int], end: float
) -> AsyncGenerator[dict[str, Any], None]:
    """Results of these places, when all have ended or at the time `end`: memory holds `SHOWN_AT_A_TIME` of them."""
    await _wait_for(service, name, places, end)
    for begin in range(0, len(places), SHOWN_AT_A_TIME):
        part = places[begin : begin + SHOWN_AT_A_TIME]
        ended = {row.place: row for row in await rows_at(service.store, name, part)}
        for place in part:
            missing = {"request_id": request_id(name, place), "response": None, "error": None}
            yield shown_result(ended[place]) if place in ended else missing


async def _wait_for(service: QueueService, name: str, places: Sequence[int], end: float) -> None:
    """Until all of these places have ended, or the time `end`."""
    group = await service.queue.group(name)
    begin = 0

    async def look() -> bool | None:
        nonlocal begin
        while begin < len(places):
            part = places[begin : begin + AT_A_TIME]
            if await ended_at(service.store, name, part) < len(part):
                return None
            begin += len(part)
        return True

    if group.ended is None:
        await service.store.signals.poll([signal_of(name)], max(0.0, end - time.monotonic()), look)


async def _events(service: QueueService, name: str, places: Sequence[int]) -> AsyncGenerator[bytes, None]:
    """Results as they arrive, among the next thousand that have not ended."""
    left = dict.fromkeys(places)
    while left and not service.store.signals.closing:
        chunk = [place for place, _ in zip(left, range(AT_A_TIME))]
        for row in await service.results_at(name, chunk, 30.0):
            left.pop(row.place, None)
            yield event_of(shown_result(row))
    yield DONE
