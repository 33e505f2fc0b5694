"""Engines: list, register, remove, drain, their state as live events, and their models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from rondo.base.errors import Conflict, InvalidRequest, NotFound
from rondo.control.key import Key
from rondo.gateway.fleet import UNUSABLE, Fleet, FleetEngine
from rondo.gateway.proxy.forward import Forward
from rondo.gateway.routes.security import AdminKey, AnyKey, InferenceKey
from rondo.gateway.sources.loading import Loading
from rondo.gateway.sources.registered import Registrations

router = APIRouter(tags=["engines"])
EVENT_SECONDS = 15.0
"""Longest time between two events, so that a client notices a lost connection."""
SHORTEST_SECONDS = 0.5
"""Shortest time between two events."""


class NewEngine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str = Field(min_length=8, max_length=2048)


class ModelName(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str = Field(min_length=1, max_length=500)


class EngineState(BaseModel):
    id: str
    url: str
    state: str
    """ready, starting, unreachable or draining"""
    models: list[str]
    running: int
    waiting: int
    requests: int
    """Unanswered requests of this gateway."""
    capacity: int | None
    """Requests that it answers at once; others wait in the gateway's queue."""
    pending_work: int
    kv_usage: float | None
    tokens_per_second: float | None
    """Output of the last seconds; null if the engine does not report it."""
    prefix_hit_rate: float | None
    """Share of the prompt tokens of the last minute found in its prefix cache."""
    kv_events: bool
    """Whether it reports the prefixes that it stores and drops; otherwise the router uses its history."""
    prefixes: int
    """Prefixes in its cache, in the state of the router."""
    weight_version: str | None
    failures: int
    restarts: int
    seen: float | None
    error: str | None


class QueueState(BaseModel):
    """Requests that wait because all engines of their model are full."""

    waiting: dict[str, int]
    """By service tier."""
    bytes: int
    mean_wait_seconds: float


class EngineList(BaseModel):
    object: str = "list"
    data: list[EngineState]
    queue: QueueState


@router.get("/v1/engines")
async def list_engines(request: Request, key: AnyKey) -> EngineList:
    """State and load of all engines with the models that the key may use, and the queue of requests that wait for
    them."""
    queue = QueueState(**request.app.state.forward.gate.state())
    return EngineList(data=[_state(each, key) for each in _fleet(request).engines.values()], queue=queue)


@router.post("/v1/engines", status_code=201)
async def register_engine(request: Request, body: NewEngine, key: AdminKey) -> EngineState:
    """Registers an engine. It receives requests once its health check succeeds."""
    return _state(await _registrations(request).register(body.url), key)


@router.delete("/v1/engines/{id}")
async def remove_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Removes an engine from the list. Its requests under way end."""
    engine = _fleet(request).engines.get(id)
    loading: Loading = request.app.state.loading
    if engine is not None and loading.started(engine.instance.url):
        raise Conflict(
            f"The engine {id} was loaded on demand, and would be listed again: unload its model with POST "
            "/v1/models/unload.",
            param="id",
        )
    return _state(await _registrations(request).remove(id), key)


@router.post("/v1/engines/{id}/drain")
async def drain_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Sends no further requests to the engine."""
    return _state(await _registrations(request).set_draining(id, True), key)


@router.post("/v1/engines/{id}/resume")
async def resume_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Sends requests to a drained engine again."""
    return _state(await _registrations(request).set_draining(id, False), key)


@router.get("/v1/engines/events", response_class=StreamingResponse)
async def engine_events(request: Request, key: AnyKey) -> StreamingResponse:
    """Server-sent events at each change: `engines`, the state of all engines, and `queue`, the state of the queue."""
    return StreamingResponse(_events(request.app.state.forward, key), media_type="text/event-stream")


@router.get("/v1/models")
async def list_models(request: Request, key: AnyKey) -> dict[str, Any]:
    """Models that the key may use: of ready engines, and with `loaded: false` the ones that load with the first
    request."""
    return {"object": "list", "data": _usable(request, key)}


@router.post("/v1/models/load")
async def load_model(request: Request, body: ModelName, key: AdminKey) -> ModelName:
    """Loads a model of this machine and waits until it answers."""
    if not await request.app.state.loading.ensure(body.model):
        raise _unknown(body.model)
    return body


@router.post("/v1/models/unload")
async def unload_model(request: Request, body: ModelName, key: AdminKey) -> ModelName:
    """Unloads a model that was loaded on demand; its running requests finish."""
    loading: Loading = request.app.state.loading
    if not loading.offers(body.model):
        raise _unknown(body.model)
    await loading.unload(body.model)
    return body


@router.get("/tokenizer_info")
async def tokenizer_info(
    request: Request,
    key: InferenceKey,
    model: Annotated[
        str | None, Query(max_length=500, description="needed if there are several models")
    ] = None,
) -> dict[str, Any]:
    """Content of a model's tokenizer_config.json, from an engine that serves the model."""
    ready = [each for each in _fleet(request).engines.values() if each.instance.healthy]
    names = key.usable(sorted({card["id"] for each in ready for card in each.cards}))
    if model is None and len(names) != 1:
        known = ", ".join(names) or "none"
        raise InvalidRequest(f"Set model to one of the ready models: {known}.", param="model")
    name = names[0] if model is None else await request.app.state.loading.resolve(model)
    key.may_use(name if model is None else model)
    engine = next((each for each in ready if name in each.instance.models), None)
    if engine is None:
        raise _unknown(name)
    try:
        found = await request.app.state.forward.upstream.get_json(engine.instance.url + "/tokenizer_info")
    except UNUSABLE as error:
        raise NotFound(f"The engine of {name!r} has no /tokenizer_info: {error}.", param="model") from error
    return dict(found)


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str, key: AnyKey) -> dict[str, Any]:
    """One model."""
    for card in _usable(request, key):
        if card["id"] == name:
            return card
    raise _unknown(name)


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"The model {name!r} does not exist: GET /v1/models lists the models.",
        param="model",
        code="model_not_found",
    )


async def _events(forward: Forward, key: Key) -> AsyncGenerator[bytes, None]:
    """Ends when the gateway closes."""
    fleet = forward.fleet
    while not forward.closing:
        changed = fleet.changed
        engines = json.dumps([_shown(each, key) for each in fleet.engines.values()])
        queue = json.dumps(forward.gate.state())
        yield f"event: engines\ndata: {engines}\n\nevent: queue\ndata: {queue}\n\n".encode()
        await asyncio.sleep(SHORTEST_SECONDS)
        try:
            async with asyncio.timeout(EVENT_SECONDS):
                await changed.wait()
        except TimeoutError:
            yield b": waiting\n\n"


def _fleet(request: Request) -> Fleet:
    fleet: Fleet = request.app.state.fleet
    return fleet


def _registrations(request: Request) -> Registrations:
    registrations: Registrations = request.app.state.registrations
    return registrations


def _state(engine: FleetEngine, key: Key) -> EngineState:
    return EngineState(**_shown(engine, key))


def _shown(engine: FleetEngine, key: Key) -> dict[str, Any]:
    values = engine.as_dict()
    return values | {"models": key.usable(values["models"])}


def _usable(request: Request, key: Key) -> list[dict[str, Any]]:
    fleet, loading = _fleet(request), request.app.state.loading
    loaded = [card | {"loaded": True} for card in fleet.models()]
    names = {card["id"] for card in loaded}
    cards = loaded + [card for card in loading.cards() if card["id"] not in names]
    names = {card["id"] for card in cards}
    cards += [card for card in request.app.state.registry.cards() if card["id"] not in names]
    usable = set(key.usable(card["id"] for card in cards))
    return [card for card in cards if card["id"] in usable]
