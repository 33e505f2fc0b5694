"""Liveness, readiness, the state of each component, metrics, and the logs of parts by byte offset."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rondo import __version__
from rondo.base.errors import RondoError
from rondo.base.telemetry import metrics
from rondo.gateway.fleet import Fleet
from rondo.gateway.routes.security import AdminKey, AnyKey
from rondo.supervisor.logs import parts_with_logs, read_log

router = APIRouter(tags=["health"])
STORE_SECONDS = 2.0
PROBES = frozenset(
    ["/health", "/ready", "/v1/health", "/v1/health/live", "/v1/health/keepalive", "/v1/health/ready"]
)
"""Paths that also allow HEAD."""

ENGINES = metrics.gauge("gateway_engines", "Engines, by state", ("state",))
STATES = ("ready", "starting", "unreachable", "draining")


class LogList(BaseModel):
    object: str = "list"
    data: list[str]


class LogText(BaseModel):
    part: str
    file: str
    """Changes when the log is rotated."""
    older: str | None
    """The file before, which can be read until a rotation removes it."""
    start: int
    end: int
    """Offset for the next request, to follow the log."""
    size: int
    text: str


@router.get("/health")
@router.get("/v1/health/live")
@router.get("/v1/health/keepalive")
async def live() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/ready")
@router.get("/v1/health/ready")
async def ready(request: Request) -> JSONResponse:
    """Whether model requests can be answered: the store works, at least one engine is ready, and the gateway does not
    shut down."""
    report = await _report(request)
    works = all(report[part]["status"] == "ok" for part in ("gateway", "store"))
    good = works and report["engines"]["ready"] > 0
    return JSONResponse({"ready": good}, status_code=200 if good else 503)


@router.get("/v1/health")
async def health(request: Request) -> JSONResponse:
    """State of each component: 200 if all work, 503 if one fails."""
    report = await _report(request)
    good = all(each["status"] == "ok" for each in report.values())
    return JSONResponse(
        {"status": "ok" if good else "degraded", "version": __version__, "components": report},
        status_code=200 if good else 503,
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request, key: AnyKey) -> Response:
    """Metrics for Prometheus."""
    fleet: Fleet = request.app.state.fleet
    states = [each.state for each in fleet.engines.values()]
    for state in STATES:
        ENGINES.labels(state).set(states.count(state))
    request.app.state.forward.gate.note_metrics()
    return Response(metrics.render(), media_type=metrics.CONTENT_TYPE)


@router.get("/v1/health/logs")
def list_logs(key: AdminKey) -> LogList:
    """Parts that have a log."""
    return LogList(data=parts_with_logs())


@router.get("/v1/health/logs/{part}")
def read_part(
    part: str,
    key: AdminKey,
    offset: Annotated[
        int | None, Query(ge=0, description="first byte; without it, the end of the log")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1 << 20, description="most bytes")] = 64 << 10,
    file: Annotated[str | None, Query(max_length=100, description="`file` of an earlier answer")] = None,
) -> LogText:
    """Whole lines of a part's log. To follow it, set `offset` to `end` and `file` to that of the earlier answer;
    to scroll back, set an `offset` below `start`, or `file` to `older` for the end of the file before."""
    piece = read_log(part, offset, limit, file)
    text = piece.data.decode(errors="replace")
    place = {"start": piece.start, "end": piece.end, "size": piece.size}
    return LogText(part=part, file=piece.file, older=piece.older, **place, text=text)


async def _report(request: Request) -> dict[str, Any]:
    fleet: Fleet = request.app.state.fleet
    engines = list(fleet.engines.values())
    good = sum(each.state == "ready" for each in engines)
    bad = sum(each.state == "unreachable" for each in engines)
    forward = request.app.state.forward
    status = "shutting_down" if forward.closing else "ok"
    return {
        "gateway": {"status": status, "active_requests": forward.active},
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
