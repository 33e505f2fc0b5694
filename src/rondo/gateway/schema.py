"""Description of the gateway's own routes, for the types of the web page: `python -m rondo.gateway.schema`."""

from __future__ import annotations

import json

from fastapi import FastAPI

from rondo.gateway.app import ROUTERS


def schema() -> str:
    app = FastAPI(title="Rondo", version="0")
    for router in ROUTERS:
        app.include_router(router)
    return json.dumps(app.openapi(), indent=1, sort_keys=True)


if __name__ == "__main__":
    print(schema())
