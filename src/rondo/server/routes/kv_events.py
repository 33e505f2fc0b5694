"""`GET /v1/kv_events`: prefixes that the cache stores and drops, as a long poll for routers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import Forbidden, NotFound
from rondo.engine.kv.events import CacheChanges, CacheEvents
from rondo.web.admin import query
from rondo.web.http import unless_gone

GATHER_SECONDS = 0.005
"""Pause after the first change, in which further changes of the same step join it."""


def kv_events_route(events: CacheEvents | None, keys: Sequence[str]) -> Route:
    """`keys`: API keys of the server."""

    async def endpoint(request: Request) -> Response:
        if events is None:
            raise NotFound("This engine reports no events of its prefix cache.", code="no_kv_events")
        if len(set(keys)) > 1:
            raise Forbidden(
                "With several API keys the cached prefixes of a key are not visible to the others: set server.api_key "
                "to one key.",
                code="several_api_keys",
            )
        options: dict[str, Any] = {
            name: values[-1] for name, values in (await query(request, OPTIONS)).items()
        }
        scheme = options.get("piece", 1024), options.get("longest", 256)
        place = options.get("epoch", ""), options.get("after", 0)
        try:
            changes = await unless_gone(
                request.receive, _changes(events, scheme, *place, options.get("wait", 0))
            )
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse(vars(changes))

    return Route("/v1/kv_events", endpoint, methods=["GET"])


async def _changes(
    events: CacheEvents, scheme: tuple[int, int], epoch: str, after: int, wait: float
) -> CacheChanges:
    """Waits up to `wait` seconds until there are changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(changed.set)

    end = events.on_change(wake)
    try:
        changes = events.read(scheme, epoch, after)
        if changes.whole or changes.last > after or not wait:
            return changes
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await changed.wait()
                await asyncio.sleep(GATHER_SECONDS)
        return events.read(scheme, epoch, after)
    finally:
        end()


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise ValueError(f"it is a whole number from {least} to {most}")
        return int(text)

    return read


OPTIONS: dict[str, Callable[[str], object]] = {
    "epoch": str,
    "after": _whole(0, 1 << 62),
    "piece": _whole(64, 1 << 20),
    "longest": _whole(1, 1 << 16),
    "wait": _whole(0, 30),
}
