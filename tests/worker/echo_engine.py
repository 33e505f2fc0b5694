"""An engine as a process: it answers a completion with its prompt, after a moment."""

import asyncio
import random

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.web.config import ListenConfig
from rondo.web.run import bind, make_server, run_server
from support.forked_gateway import redirect

LONGEST = 0.03


async def models(request: Request) -> Response:
    return JSONResponse({"data": [{"id": "m", "object": "model"}]})


async def ready(request: Request) -> Response:
    return JSONResponse({"ready": True})


async def complete(request: Request) -> Response:
    body = await request.json()
    await asyncio.sleep(random.uniform(0, LONGEST))
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse({"object": "text_completion", "choices": [{"text": body["prompt"]}], "usage": usage})


def serve(log: str, port: str) -> None:
    redirect(log)
    app = Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/ready", ready),
            Route("/v1/completions", complete, methods=["POST"]),
        ]
    )
    config = ListenConfig(port=int(port), access_log=False)
    run_server(make_server(app, config), bind(config.host, config.port), lambda: None)
