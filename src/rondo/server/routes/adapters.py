"""Loading and unloading adapters under vLLM's names: thin translations for the operator."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rondo.base.errors import InvalidRequest, NotFound
from rondo.client.engine import Engine
from rondo.client.protocol.refusals import parse
from rondo.client.protocol.wire import WireModel
from rondo.server.served import ServedModel
from rondo.web.admin import admin_route
from rondo.web.http import read_body

LOAD, UNLOAD = ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class LoadAdapter(WireModel):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapter(WireModel):
    lora_name: str
    lora_int_id: None = None


def adapter_routes(engine: Engine, served: ServedModel, key: str | None) -> list[Route]:
    async def load(request: Request) -> Response:
        body = parse(LoadAdapter, await read_body(request, served.bodies.limit))
        if not body.lora_name or not body.lora_path:
            raise InvalidRequest("Both 'lora_name' and 'lora_path' must be provided.", param="lora_name")
        if served.is_base(body.lora_name):
            raise InvalidRequest(
                f"{body.lora_name!r} is the name of the model itself: give the adapter another.",
                param="lora_name",
            )
        await engine.load_adapter(body.lora_name, body.lora_path, body.load_inplace)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(request: Request) -> Response:
        body = parse(UnloadAdapter, await read_body(request, served.bodies.limit))
        if not engine.has_adapter(body.lora_name):
            raise NotFound(f"The lora adapter '{body.lora_name}' cannot be found.", param="lora_name")
        await engine.unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return [admin_route(LOAD, load, key), admin_route(UNLOAD, unload, key)]
