"""Liveness, readiness, the state of each component, and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from rondo import __version__
from rondo.base.errors import RondoError
from rondo.base.telemetry import metrics
from rondo.gateway.fleet import Fleet
from rondo.gateway.routes.security import AnyKey

router = APIRouter(tags=["health"])
STORE_SECONDS = 2.0

ENGINES = metrics.gauge("gateway_engines", "Engines, by state", ("state",))
STATES = ("ready", "starting", "unreachable", "draining")


@router.get("/health")
@router.get("/v1/health/live")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/ready")
@router.get("/v1/health/ready")
async def ready(request: Request) -> JSONResponse:
    """Whether model requests can be answered: the store works and at least one engine is ready."""
    report = await _report(request)
    good = report["store"]["status"] == "ok" and report["engines"]["ready"] > 0
    return JSONResponse({"ready": good}, status_code=200 if good else 503)


@router.get("/v1/health")
async def health(request: Request) -> JSONResponse:
    """State of each component: 200 if all work, 503 if one fails."""
    report = await _report(request)
    good = all(report[part]["status"] == "ok" for part in ("store", "engines"))
    return JSONResponse(
        {"status": "ok" if good else "degraded", "version": __version__, "components": report},
        status_code=200 if good else 503,
    )


@router.get("/metrics")
async def show_metrics(request: Request, key: AnyKey) -> Response:
    """Metrics for Prometheus."""
    fleet: Fleet = request.app.state.fleet
    states = [each.state for each in fleet.engines.values()]
    for state in STATES:
        ENGINES.labels(state).set(states.count(state))
    return Response(metrics.render(), media_type=metrics.CONTENT_TYPE)


async def _report(request: Request) -> dict[str, Any]:
    fleet: Fleet = request.app.state.fleet
    engines = list(fleet.engines.values())
    good = sum(each.state == "ready" for each in engines)
    bad = sum(each.state == "unreachable" for each in engines)
    return {
        "gateway": {"status": "ok", "active_requests": request.app.state.forward.active},
        "store": await _store(request),
        "engines": {"status": "ok" if good and not bad else "error", "ready": good, "total": len(engines)},
    }


async def _store(request: Request) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await request.app.state.store.read(lambda db: db.execute(sa.text("SELECT 1")).scalar_one())
    except TimeoutError:
        return {"status": "error", "error": f"no answer within {STORE_SECONDS:g} s"}
    except (RondoError, sa.exc.SQLAlchemyError) as error:
        return {"status": "error", "error": type(error).__name__}
    return {"status": "ok", "seconds": round(time.monotonic() - begun, 6)}
