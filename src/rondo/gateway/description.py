"""`/openapi.json`: the gateway's own routes, the proxied ones, and the shape of errors."""

from __future__ import annotations

from threading import Lock
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse

from rondo.gateway.auth import PROXIED

Schema = dict[str, Any]
TEXT = {"type": ["string", "null"]}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": TEXT,
                "code": TEXT,
            },
        }
    },
}
FAILURE: Schema = {
    "description": "An error in OpenAI's shape",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
}


def describe(app: FastAPI) -> None:
    """Adds the proxied routes and the errors to the application's description."""
    own, making = app.openapi, Lock()

    def openapi() -> Schema:
        with making:  # `own` stores the document before it is complete
            return complete()

    def complete() -> Schema:
        if app.openapi_schema is None:
            from rondo.gateway.routes import proxied  # imported at the first request

            document = own()
            for path, scope in PROXIED.items():
                document["paths"].setdefault(path, {})["post"] = proxied.operation(path, scope)
            document["components"]["schemas"] |= proxied.schemas() | {"ErrorBody": ERROR}
            for methods in document["paths"].values():
                for operation in methods.values():
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = FAILURE
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False)
    def document() -> JSONResponse:
        """Written in a thread: the first time takes a second."""
        return JSONResponse(app.openapi())
