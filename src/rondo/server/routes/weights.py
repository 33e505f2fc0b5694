"""A new version of the weights under vLLM's names: thin translations for the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import ConfigError, InvalidRequest, ModelError
from rondo.base.storage.paths import path_of
from rondo.client.protocol.refusals import parse, renaming
from rondo.client.protocol.wire import WireModel, shown
from rondo.engine.weights.weight_session import WeightSession
from rondo.web.admin import LARGEST_BODY, admin_route, query
from rondo.web.http import read_body

NAMES = {None: "update_info", "path": "update_info", "update_info": "update_info"}
"""Names of a weight folder in internal errors, and in the request."""
LARGEST_PATH = 16 * 1024
LONGEST_VERSION = 20
"""Digits: more are no number of 63 bits."""
ONLY_FOLDERS = (
    'weights come here as a folder of safetensors on the server\'s disk, {"path": "/a/folder", "version": 7}, which '
    "every worker reads for itself."
)


class InitTransfer(WireModel):
    init_info: dict[str, Any] = Field(default_factory=dict)


class UpdateWeights(WireModel):
    update_info: dict[str, Any] | list[Any]


class FinishUpdate(WireModel):
    weight_version: int | str | None = None


def folder_of(update_info: dict[str, Any] | list[Any]) -> tuple[Path, int | None]:
    """(its path, its version) of vLLM's `update_info`, whose other forms name tensors that come on another way."""
    if not isinstance(update_info, dict) or not {"path"} <= update_info.keys() <= {"path", "version"}:
        raise InvalidRequest(f"update_info cannot be this: {ONLY_FOLDERS}", param="update_info")
    path, version = update_info["path"], update_info.get("version")
    if not isinstance(path, str) or not path:
        raise InvalidRequest("update_info.path must be the path of a folder.", param="update_info")
    # Whoever reads it may work in another folder.
    return path_of(path, "update_info.path").absolute(), version_of(version, "update_info")


def version_of(version: object, field: str = "weight_version") -> int | None:
    """vLLM's versions are texts; here they are numbers that grow."""
    if (
        isinstance(version, str)
        and version.isascii()
        and version.isdigit()
        and len(version) <= LONGEST_VERSION
    ):
        version = int(version)
    if version is None or (type(version) is int and 0 <= version < 2**63):
        return version
    raise InvalidRequest(
        f"{field}: a version is a whole number of at most 63 bits that grows with each update; got {shown(version)}.",
        param=field,
    )


def weight_routes(session: WeightSession, key: str | None) -> list[Route]:
    async def init(request: Request) -> Response:
        body = parse(InitTransfer, await read_body(request, LARGEST_BODY) or b"{}")
        if body.init_info:
            raise InvalidRequest(f"init_info must be empty: {ONLY_FOLDERS}", param="init_info")
        return JSONResponse({"message": "Weight transfer initialized"})

    async def start(request: Request) -> Response:
        await query(request, {})
        session.start()
        return JSONResponse({"message": "Weight update started"})

    async def update(request: Request) -> Response:
        body = parse(UpdateWeights, await read_body(request, LARGEST_PATH))
        with renaming(NAMES, (InvalidRequest, ModelError, ConfigError)):
            await session.update(*folder_of(body.update_info))
        return JSONResponse({"message": "Weights updated"})

    async def finish(request: Request) -> Response:
        body = parse(FinishUpdate, await read_body(request, LARGEST_BODY) or b"{}")
        await session.finish(version_of(body.weight_version))
        return JSONResponse({"message": "Weight update finished"})

    async def abort(request: Request) -> Response:
        await query(request, {})
        session.abort()
        return JSONResponse({"message": "Weight update aborted"})

    return [
        admin_route("/init_weight_transfer_engine", init, key),
        admin_route("/start_weight_update", start, key),
        admin_route("/update_weights", update, key),
        admin_route("/finish_weight_update", finish, key),
        admin_route("/abort_weight_update", abort, key),
    ]
