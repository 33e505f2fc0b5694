"""`/openapi.json`: every route, with the same body types that validate requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from rondo import __version__
from rondo.client.protocol.model_routes import MODEL_ROUTES
from rondo.client.protocol.openai import ModelCard, ModelList
from rondo.client.protocol.wire import WireModel
from rondo.server.routes.adapters import LoadAdapter, UnloadAdapter
from rondo.server.routes.lifecycle import MODES, AbortRequests
from rondo.server.routes.weights import FinishUpdate, InitTransfer, UpdateWeights

Schema = dict[str, Any]
PATH = "/openapi.json"
JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorDetails


@dataclass(frozen=True)
class Described:
    """Description of a route: purpose, request and response. The response is JSON, unless `media` is set. `None` as
    `answer` means an empty response."""

    summary: str
    body: type[WireModel] | None = None
    query: Mapping[str, Schema] = field(default_factory=dict)
    answer: type[BaseModel] | Literal["object"] | None = "object"
    media: tuple[str, ...] = (JSON,)
    event: type[BaseModel] | None = None
    """The JSON of the events, where the answer may also be a stream."""
    bodyless: bool = False
    """The body may also be left out."""
    never: bool = False
    """The route always refuses."""


_MODE = {"mode": {"enum": list(MODES)}}
_BOOL = {"type": "boolean"}
_ROLLOUTS: dict[str, Schema] = {
    "where": {"type": "array", "items": {"type": "string"}, "description": "reward>0.5, text~sorry, ..."},
    "step": {"type": "integer", "minimum": 0},
    "sort": {"type": "string"},
    "order": {"enum": ["asc", "desc"]},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "after": {"type": "string"},
}
_KV_EVENTS: dict[str, Schema] = {
    "epoch": {"type": "string"},
    "after": {"type": "integer", "minimum": 0, "description": "number of the latest event that was read"},
    "piece": {"type": "integer", "minimum": 64, "maximum": 1 << 20, "description": "bytes of a prefix piece"},
    "longest": {"type": "integer", "minimum": 1, "maximum": 1 << 16, "description": "pieces of a prompt"},
    "wait": {"type": "integer", "minimum": 0, "maximum": 30, "description": "seconds to wait for a change"},
}
_FORGOTTEN = Described("Nothing: answers are not kept here", never=True)

OF_THE_MODEL: dict[str, Described] = {
    **{
        f"POST {path}": Described(each.summary, each.body, event=each.event)
        for path, each in MODEL_ROUTES.items()
    },
    "GET /v1/responses/{id}": _FORGOTTEN,
    "DELETE /v1/responses/{id}": _FORGOTTEN,
    "GET /v1/responses/{id}/input_items": _FORGOTTEN,
    "POST /v1/responses/{id}/cancel": _FORGOTTEN,
    "GET /tokenizer_info": Described("The tokenizer's settings"),
    "GET /v1/models": Described("The model and its adapters", answer=ModelList),
    "GET /v1/models/{name}": Described("One of them", answer=ModelCard),
    "GET /v1/kv_events": Described("Prefixes that the cache stores and drops, for routers", query=_KV_EVENTS),
}
OPEN: dict[str, Described] = {
    "GET /health": Described("Whether the engine works"),
    "GET /ping": Described("The same"),
    "POST /ping": Described("The same"),
    "GET /ready": Described("Whether requests are taken"),
    "GET /version": Described("The versions of the program and of the weights"),
    "GET /load": Described("How many requests there are"),
    "GET /metrics": Described("Metrics for Prometheus", media=(TEXT,)),
    f"GET {PATH}": Described("This description"),
}
OF_THE_OPERATOR: dict[str, Described] = {
    "POST /sleep": Described("Give memory back", query={"level": {"enum": ["1", "2"]}} | _MODE),
    "POST /wake_up": Described("Take memory again", query={"tags": {"type": "string"}}),
    "GET /is_sleeping": Described("Whether any part sleeps"),
    "POST /pause": Described("Stop between two steps", query=_MODE | {"clear_cache": _BOOL}),
    "POST /resume": Described("Go on"),
    "GET /is_paused": Described("Whether it is paused"),
    "POST /reset_prefix_cache": Described("Forget the prefixes of prompts"),
    "POST /abort_requests": Described(
        "End requests by the ids of their answers, or their X-Request-Id", AbortRequests
    ),
    "GET /weight_info": Described("The version and the state of the weights"),
    "POST /init_weight_transfer_engine": Described("Before the first update", InitTransfer, bodyless=True),
    "GET /get_world_size": Described("Processes that a trainer's process group needs"),
    "GET /server_info": Described("The kind of weight transfer, for trainers"),
    "POST /start_weight_update": Described("Begin an update of the weights"),
    "POST /update_weights": Described("Weights of a source, or announced tensors", UpdateWeights),
    "POST /finish_weight_update": Described("Go on with the new weights", FinishUpdate, bodyless=True),
    "POST /abort_weight_update": Described("Give the update up"),
    "POST /v1/load_lora_adapter": Described("Serve an adapter", LoadAdapter, answer=None, media=(TEXT,)),
    "POST /v1/unload_lora_adapter": Described("Serve it no more", UnloadAdapter, answer=None, media=(TEXT,)),
    "GET /v1/rl/jobs/{job}/rollouts": Described("The rollouts of an RL job", query=_ROLLOUTS),
    "GET /v1/rl/jobs/{job}/rollouts/{id}": Described("One of them, with its tokens"),
}
KEYS: dict[str, Schema] = {
    "key": {"type": "http", "scheme": "bearer", "description": "server.api_key, where it is set"},
    "admin": {"type": "apiKey", "in": "header", "name": "X-Admin-Key", "description": "server.admin_key"},
}


def openapi_route(routes: Iterable[BaseRoute]) -> Route:
    """Describes the documented routes of `routes`, and itself."""
    names = {
        f"{method} {_shown(route)}"
        for route in routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    made: list[Schema] = []

    async def endpoint(request: Request) -> Response:
        if not made:
            made.append(document(names | {f"GET {PATH}"}))
        return JSONResponse(made[0])

    return Route(PATH, endpoint)


def _shown(route: Route) -> str:
    return route.path.replace("{name:path}", "{name}")


def document(names: Iterable[str]) -> Schema:
    from pydantic.json_schema import models_json_schema  # imported at the first request

    groups = [(OF_THE_MODEL, "key"), (OPEN, None), (OF_THE_OPERATOR, "admin")]
    known = {name: (described, key) for group, key in groups for name, described in group.items()}
    served = [(name, *known[name]) for name in sorted(names) if name in known]
    bodies = {
        kind for _, one, _ in served for kind in (one.body, one.answer, one.event) if isinstance(kind, type)
    }
    ordered = sorted(bodies | {Error}, key=lambda kind: kind.__name__)
    _, definitions = models_json_schema(
        [(kind, "validation") for kind in ordered], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Schema] = {}
    for name, described, key in served:
        method, path = name.split(" ")
        paths.setdefault(path, {})[method.lower()] = _operation(path, described, key)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rondo",
            "version": __version__,
            "description": "OpenAI's API, and vLLM's beside it.",
        },
        "paths": paths,
        "components": {"schemas": definitions["$defs"], "securitySchemes": KEYS},
    }


def _operation(path: str, described: Described, key: str | None) -> Schema:
    given = re.findall(r"{(\w+)}", path)
    parameters: list[Schema] = [
        *({"name": name, "in": "query", "schema": schema} for name, schema in described.query.items()),
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in given),
    ]
    operation: Schema = {
        "summary": described.summary,
        "responses": ({} if described.never else {"200": _answer(described)})
        | dict.fromkeys(("4XX", "5XX"), _ERROR),
    }
    if parameters:
        operation["parameters"] = parameters
    if described.body is not None:
        content = {JSON: {"schema": _reference(described.body)}}
        operation["requestBody"] = {"required": not described.bodyless, "content": content}
    if key is not None:
        operation["security"] = [{key: []}] if key == "admin" else [{key: []}, {}]
    return operation


def _answer(described: Described) -> Schema:
    if described.answer is None and described.media == (JSON,):
        return {"description": "It is done"}
    whole = {"type": "object"} if described.answer == "object" else None
    schema = _reference(described.answer) if isinstance(described.answer, type) else whole
    texts: Schema = {"schema": {"type": "string"}}
    content: dict[str, Schema] = {
        media: {"schema": schema} if media == JSON else texts for media in described.media
    }
    description = "It is done"
    if described.event is not None:
        content[EVENTS] = {"schema": {"anyOf": [_reference(described.event), _reference(Error)]}}
        description += f". {STREAM}"
    return {"description": description, "content": content}


def _reference(kind: type[BaseModel]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


STREAM = (
    "With `stream: true` the answer is server-sent events. The schema is that of the JSON after each `data: `; an "
    "error in the middle is an event too. Chat and plain completions end with `data: [DONE]`."
)
_ERROR: Schema = {
    "description": "What is wrong, and what to do",
    "content": {JSON: {"schema": _reference(Error)}},
}
