"""Models of all engines."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from rondo.base.errors import NotFound
from rondo.control.key import Key
from rondo.gateway.routes.security import AnyKey

router = APIRouter(tags=["models"])


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


def _usable(request: Request, key: Key) -> list[dict[str, Any]]:
    cards: list[dict[str, Any]] = request.app.state.fleet.models()
    allowed = key.rights.models
    return [card for card in cards if not allowed or card["id"] in allowed]
