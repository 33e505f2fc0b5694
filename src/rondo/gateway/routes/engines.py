"""Engines: list, register, remove, drain, their state as live events, and their models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from rondo.base.errors import NotFound
from rondo.control.key import Key
from rondo.gateway.fleet import Fleet, FleetEngine
from rondo.gateway.routes.security import AdminKey, AnyKey

router = APIRouter(tags=["engines"])
EVENT_SECONDS = 15.0
"""Longest time between two events, so that a client notices a lost connection."""
SHORTEST_SECONDS = 0.5
"""Shortest time between two events."""


class NewEngine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str = Field(min_length=8, max_length=2048)


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
    pending_work: int
    kv_usage: float | None
    weight_version: str | None
    failures: int
    restarts: int
    seen: float | None
    error: str | None


class EngineList(BaseModel):
    object: str = "list"
    data: list[EngineState]


@router.get("/v1/engines")
async def list_engines(request: Request, key: AnyKey) -> EngineList:
    """State and load of all engines."""
    return EngineList(data=[_state(each) for each in _fleet(request).engines.values()])


@router.post("/v1/engines", status_code=201)
async def register_engine(request: Request, body: NewEngine, key: AdminKey) -> EngineState:
    """Registers an engine. It receives requests once its health check succeeds."""
    return _state(_fleet(request).add(body.url))


@router.delete("/v1/engines/{id}")
async def remove_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Removes an engine from the list. Its requests under way end."""
    engine = _fleet(request).find(id)
    _fleet(request).remove(id)
    return _state(engine)


@router.post("/v1/engines/{id}/drain")
async def drain_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Sends no further requests to the engine."""
    return _state(_fleet(request).set_draining(id, True))


@router.post("/v1/engines/{id}/resume")
async def resume_engine(request: Request, id: str, key: AdminKey) -> EngineState:
    """Sends requests to a drained engine again."""
    return _state(_fleet(request).set_draining(id, False))


@router.get("/v1/engines/events", response_class=StreamingResponse)
async def engine_events(request: Request, key: AnyKey) -> StreamingResponse:
    """Server-sent events: the state of all engines, at each change."""
    return StreamingResponse(_events(_fleet(request)), media_type="text/event-stream")


@router.get("/v1/models")
async def list_models(request: Request, key: AnyKey) -> dict[str, Any]:
    """Models that the key may use, of all engines that are ready."""
    return {"object": "list", "data": _usable(request, key)}


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str, key: AnyKey) -> dict[str, Any]:
    """One model."""
    for card in _usable(request, key):
        if card["id"] == name:
            return card
    raise NotFound(
        f"The model {name!r} does not exist: GET /v1/models lists the models.",
        param="model",
        code="model_not_found",
    )


async def _events(fleet: Fleet) -> AsyncGenerator[bytes, None]:
    while True:
        changed = fleet.changed
        data = json.dumps([each.as_dict() for each in fleet.engines.values()])
        yield f"event: engines\ndata: {data}\n\n".encode()
        await asyncio.sleep(SHORTEST_SECONDS)
        try:
            await asyncio.wait_for(changed.wait(), EVENT_SECONDS)
        except TimeoutError:
            yield b": waiting\n\n"


def _fleet(request: Request) -> Fleet:
    fleet: Fleet = request.app.state.fleet
    return fleet


def _state(engine: FleetEngine) -> EngineState:
    values: dict[str, Any] = engine.as_dict()
    return EngineState(**values)


def _usable(request: Request, key: Key) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = request.app.state.fleet.models()
    allowed = key.rights.models
    return [card for card in cards if not allowed or card["id"] in allowed]
