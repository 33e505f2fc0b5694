"""Sleep, pause and their relatives under vLLM's names: thin translations for the operator."""

from __future__ import annotations

from typing import Any, cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.client.engine import PauseMode, ServedEngine
from rondo.client.protocol.refusals import parse
from rondo.client.protocol.wire import Many, WireModel
from rondo.engine.weights.sleep import TAGS
from rondo.engine.weights.weight_session import WeightSession
from rondo.server.served import ServedModel
from rondo.web.admin import admin_route, query
from rondo.web.http import read_body, unless_gone

MODES = get_args(PauseMode)


class AbortRequests(WireModel):
    """Ids of answers, or their X-Request-Ids. An empty list aborts all active requests."""

    request_ids: Many[str]


def lifecycle_routes(
    engine: ServedEngine, served: ServedModel, session: WeightSession, key: str | None
) -> list[Route]:
    async def sleep(request: Request) -> Response:
        options = await query(request, {"level": _level, "mode": _mode})
        level, mode = _last(options, "level", 1), _last(options, "mode", "abort")
        await unless_gone(request.receive, engine.sleep(level, mode))
        return JSONResponse({"status": "sleeping", "level": level})

    async def wake_up(request: Request) -> Response:
        tags = cast("list[str] | None", (await query(request, {"tags": str})).get("tags"))
        await engine.wake(tags)
        status = "sleeping" if engine.is_sleeping else "awake"
        return JSONResponse({"status": status, "tags": tags or list(TAGS)})

    async def is_sleeping(request: Request) -> Response:
        return JSONResponse({"is_sleeping": engine.is_sleeping})

    async def pause(request: Request) -> Response:
        options = await query(request, {"mode": _mode, "clear_cache": _bool})
        await unless_gone(request.receive, engine.pause(_last(options, "mode", "abort")))
        if _last(options, "clear_cache", False):
            await engine.reset_prefix_cache()
        return JSONResponse({"status": "paused"})

    async def resume(request: Request) -> Response:
        await query(request, {})
        await engine.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(request: Request) -> Response:
        return JSONResponse({"is_paused": engine.is_paused})

    async def reset_prefix_cache(request: Request) -> Response:
        await query(request, {})
        await engine.reset_prefix_cache()
        return JSONResponse({"success": True})

    async def abort_requests(request: Request) -> Response:
        body = parse(AbortRequests, await read_body(request, served.bodies.limit))
        names = body.request_ids or list(served.parts)
        running = dict.fromkeys(id for name in names for id in served.going_by(name))
        for id in running:
            await served.abort(id)
        return JSONResponse({"status": "aborted", "aborted": len(running)})

    async def weight_info(request: Request) -> Response:
        state = engine.weight_state()
        info = {
            "model": served.name,
            "weight_version": engine.weight_version,
            "updating": state.updating or session.open,
            "whole": state.whole,
            "asleep": state.asleep,
        }
        return JSONResponse(info)

    return [
        admin_route("/sleep", sleep, key),
        admin_route("/wake_up", wake_up, key),
        admin_route("/is_sleeping", is_sleeping, key, "GET"),
        admin_route("/pause", pause, key),
        admin_route("/resume", resume, key),
        admin_route("/is_paused", is_paused, key, "GET"),
        admin_route("/reset_prefix_cache", reset_prefix_cache, key),
        admin_route("/abort_requests", abort_requests, key),
        admin_route("/weight_info", weight_info, key, "GET"),
    ]


def _last(options: dict[str, list[object]], name: str, default: Any) -> Any:
    return options.get(name, [default])[-1]


def _level(text: str) -> int:
    if text not in ("1", "2"):
        raise ValueError("it is 1 (weights go to CPU memory) or 2 (weights are dropped)")
    return int(text)


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError(f"it is one of {', '.join(MODES)}")
    return text


def _bool(text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError("it is true or false")
    return words[text.lower()]
