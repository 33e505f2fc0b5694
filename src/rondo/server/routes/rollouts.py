"""The rollouts of RL jobs on this machine, for the operator: a list in OpenAI's shape, and one with its tokens."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rondo.jobs.folders import find_job
from rondo.rl.record import rollout_json
from rondo.rl.record.query import Condition
from rondo.rl.record.reader import Order, RolloutReader
from rondo.rl.record.store import FOLDER
from rondo.web.admin import admin_route, query

RL = "/v1/rl/"
"""Path prefix: prompts and answers of a job are visible to the operator only, not to model clients."""
LIMIT, MOST = 20, 100


def rollout_routes(key: str | None) -> list[Route]:
    async def rollouts(request: Request) -> Response:
        options = await query(
            request,
            {"where": str, "step": _step, "sort": str, "order": _order, "limit": _limit, "after": str},
        )
        # In a thread: a job may have thousands of files.
        return _json(await asyncio.to_thread(_page, request.path_params["job"], options))

    async def rollout(request: Request) -> Response:
        await query(request, {})
        found = await asyncio.to_thread(_of(request.path_params["job"]).show, request.path_params["id"])
        return _json(rollout_json.whole(found))

    return [
        admin_route(f"{RL}jobs/{{job}}/rollouts", rollouts, key, "GET"),
        admin_route(f"{RL}jobs/{{job}}/rollouts/{{id}}", rollout, key, "GET"),
    ]


def _page(job: str, options: dict[str, list[object]]) -> dict[str, Any]:
    stored = _of(job)
    where = [Condition.of(str(text)) for text in options.get("where", [])]
    where += [Condition("step", "=", str(step)) for step in options.get("step", [])]
    found = stored.find(
        where,
        sort=str(options.get("sort", ["step"])[-1]),
        order=cast(Order, options.get("order", ["desc"])[-1]),
        limit=cast(int, options.get("limit", [LIMIT])[-1]),
        after=cast("str | None", options.get("after", [None])[-1]),
    )
    return rollout_json.page(found, stored.texts(found.entries))


def _json(body: dict[str, Any]) -> Response:
    """In ASCII: texts of a data set may have halves of characters, which are no UTF-8."""
    return Response(json.dumps(body), media_type="application/json")


def _of(job: str) -> RolloutReader:
    return RolloutReader(find_job(job) / FOLDER)


def _step(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("it is a whole number")
    return int(text)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST):
        raise ValueError(f"it is a whole number from 1 to {MOST}")
    return int(text)


def _order(text: str) -> str:
    if text not in ("asc", "desc"):
        raise ValueError("it is asc or desc")
    return text
