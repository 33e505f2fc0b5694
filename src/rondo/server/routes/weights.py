"""A new version of the weights under vLLM's names: thin translations for the operator."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import ConfigError, InvalidRequest, ModelError
from rondo.base.storage.paths import path_of
from rondo.client.engine import RunningRequests
from rondo.client.protocol.refusals import parse, renaming
from rondo.client.protocol.wire import WireModel, shown
from rondo.engine.weights.weight_session import WeightSession
from rondo.web.admin import LARGEST_BODY, admin_route, query
from rondo.web.http import read_body
from rondo.weights.transports.source import WeightSource

NAMES = dict.fromkeys((None, "path", "source", "update_info"), "update_info")
"""Names of a weight folder in internal errors, and in the request."""
LARGEST_UPDATE = 64 << 20
"""Bytes of the names and shapes of all tensors of a large model."""
LONGEST_VERSION = 20
"""Digits: more are no number of 63 bits."""
SOURCES = (
    'weights come from a folder of safetensors on the server\'s disk, {"path": "/a/folder", "version": 7}, or from '
    'another source, {"source": "shm:/dev/shm/...", "version": 7}.'
)


class InitTransfer(WireModel):
    init_info: dict[str, Any] = Field(default_factory=dict)


class UpdateWeights(WireModel):
    update_info: dict[str, Any] | list[Any]


class FinishUpdate(WireModel):
    weight_version: int | str | None = None
    requests: RunningRequests = "retain"


def source_of(update_info: dict[str, Any] | list[Any]) -> tuple[WeightSource, int | None]:
    """Source and version of vLLM's `update_info`: a `path` or a `source`, whose other forms announce tensors."""
    keys = update_info.keys() - {"version"} if isinstance(update_info, dict) else set()
    if not isinstance(update_info, dict) or keys not in ({"path"}, {"source"}):
        raise InvalidRequest(f"update_info cannot be this: {SOURCES}", param="update_info")
    (field,) = keys
    text, version = update_info[field], version_of(update_info.get("version"), "update_info")
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"update_info.{field} must be a text: {SOURCES}", param="update_info")
    if field == "source":
        return WeightSource.parse(text), version
    # Ranks may have another working directory.
    return WeightSource("file", str(path_of(text, "update_info.path").absolute())), version


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
            await session.connect(body.init_info)
        return JSONResponse({"message": "Weight transfer initialized"})

    async def start(request: Request) -> Response:
        await query(request, {})
        session.start()
        return JSONResponse({"message": "Weight update started"})

    async def update(request: Request) -> Response:
        body = parse(UpdateWeights, await read_body(request, LARGEST_UPDATE))
        if isinstance(body.update_info, dict) and "names" in body.update_info:
            await session.receive(body.update_info)
            return JSONResponse({"message": "Weights updated"})
        with renaming(NAMES, (InvalidRequest, ModelError, ConfigError)):
            await session.update(*source_of(body.update_info))
        return JSONResponse({"message": "Weights updated"})

    async def finish(request: Request) -> Response:
        body = parse(FinishUpdate, await read_body(request, LARGEST_BODY) or b"{}")
        await session.finish(version_of(body.weight_version), body.requests)
        return JSONResponse({"message": "Weight update finished"})

    async def abort(request: Request) -> Response:
        await query(request, {})
        session.abort()
        return JSONResponse({"message": "Weight update aborted"})

    async def world_size(request: Request) -> Response:
        await query(request, {"include_dp": str})
        # One process receives the weights for all ranks of this host.
        return JSONResponse({"world_size": 1})

    async def info(request: Request) -> Response:
        await query(request, {"config_format": str})
        return JSONResponse({"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}})

    return [
        admin_route("/get_world_size", world_size, key, "GET"),
        admin_route("/server_info", info, key, "GET"),
        admin_route("/init_weight_transfer_engine", init, key),
        admin_route("/start_weight_update", start, key),
        admin_route("/update_weights", update, key),
        admin_route("/finish_weight_update", finish, key),
        admin_route("/abort_weight_update", abort, key),
    ]
