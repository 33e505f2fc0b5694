"""Description of the proxied routes: the types that validate their bodies in the engine server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rondo.client.protocol.model_routes import MODEL_ROUTES
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.responses import ResponsesRequest

Schema = dict[str, Any]

OF_THE_STORE: Mapping[type[BaseModel], Schema] = {
    ChatRequest: {"store": {"type": ["boolean", "null"], "description": "true: the completion is stored"}},
    ResponsesRequest: {
        "store": {"type": ["boolean", "null"], "description": "by default gateway.responses.store"},
        "background": {"type": ["boolean", "null"]},
    },
}
"""Fields that the gateway implements, and engines refuse."""


def operation(path: str, scope: str) -> Schema:
    route = MODEL_ROUTES[path]
    answers: Schema = {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}
    if route.event is not None:
        answers["text/event-stream"] = {"schema": _reference(route.event)}
    body = {"application/json": {"schema": _reference(route.body)}}
    return {
        "summary": route.summary,
        "description": f"Passed to an engine that serves the model; needs the scope {scope}.",
        "tags": ["models"],
        "security": [{"key": []}],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The engine's response", "content": answers}},
    }


def _reference(kind: type[BaseModel]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def schemas() -> dict[str, Schema]:
    """Definitions of the bodies. Other engines than Rondo's have further fields; the gateway itself needs the model."""
    bodies = {route.body for route in MODEL_ROUTES.values()}
    events = {route.event for route in MODEL_ROUTES.values() if route.event is not None}
    ordered = sorted(bodies | events, key=lambda kind: kind.__name__)
    _, found = models_json_schema(
        [(kind, "validation") for kind in ordered], ref_template="#/components/schemas/{model}"
    )
    definitions: dict[str, Schema] = found["$defs"]
    for body in bodies:
        schema = definitions[body.__name__]
        for field in schema["properties"].values():
            _describe_default(field)
        schema["properties"] |= {"model": {"type": "string", "minLength": 1}, **OF_THE_STORE.get(body, {})}
        schema["required"] = sorted({"model", *schema.get("required", ())})
        schema["additionalProperties"] = True
    return definitions


def _describe_default(field: Schema) -> None:
    """Generators of types take a field with a default for one that is always present, which is true of responses."""
    default = field.pop("default", None)
    if default is not None:
        field["description"] = f"{field.get('description', '')} Default: {json.dumps(default)}.".strip()
