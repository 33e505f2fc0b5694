"""An engine whose failures a test chooses, and a gateway in front of it, each served from a thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rondo.control.key import Rights
from rondo.control.store.store import Store
from rondo.gateway.app import Gateway
from rondo.gateway.config import GatewayConfig
from rondo.web.config import ListenConfig
from rondo.web.run import bind, make_server, url_of
from support.stores import new_store
from support.waiting import until

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@dataclass
class Stub:
    """`mode`: ok, refuse (503), error (400), die (closes the connection), half (closes it within
    the first event), cut (closes it after two), endless, stall."""

    models: list[str] = field(default_factory=lambda: ["m"])
    mode: str = "ok"
    ready: bool = True
    max_running: int | None = None
    key: str | None = None
    """Of the list of models; None if it needs none."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    """Ends a stall."""
    url: str = ""

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/ready", self._ready),
                Route("/load", self._load),
                Route("/tokenizer_info", self._tokenizer),
                Route("/{path:path}", self._answer, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "wrong key"}}, status_code=401)
        return JSONResponse({"data": [{"id": name, "object": "model"} for name in self.models]})

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=200 if self.ready else 503)

    async def _load(self, request: Request) -> Response:
        return JSONResponse({"running": 0, "waiting": 0, "max_running": self.max_running})

    async def _tokenizer(self, request: Request) -> Response:
        return JSONResponse({"tokenizer_class": self.models[0]})

    async def _answer(self, request: Request) -> Response:
        raw = await request.body()
        body = json.loads(raw)
        self.requests.append(
            {"path": request.url.path, "headers": dict(request.headers), "raw": raw, "body": body}
        )
        if self.mode == "refuse":
            return JSONResponse({"error": {"message": "full"}}, status_code=503)
        if self.mode == "error":
            return JSONResponse({"error": {"message": "no such field"}}, status_code=400)
        if self.mode == "die":
            return StreamingResponse(self._nothing(), media_type="application/json")
        if self.mode == "stall":
            while not self.released.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(max(0.1, len(self.requests) / 1000))  # very many look less often
        if body.get("stream"):
            return StreamingResponse(self._events(request, body), media_type="text/event-stream")
        answer = {"model": body.get("model"), "choices": [{"text": "ünï"}], "usage": USAGE, "from": self.url}
        return JSONResponse(answer, headers={"x-rondo-ignored": "seed", "set-cookie": "a=b"})

    async def _nothing(self) -> Any:
        """The status alone, before the connection is closed."""
        await asyncio.sleep(0)
        raise ConnectionAbortedError("of the test")
        yield b""

    async def _events(self, request: Request, body: dict[str, Any]) -> Any:
        if self.mode == "half":
            yield b'data: {"choices":[{"del'
            raise ConnectionAbortedError("of the test")
        yield b'data: {"choices":[{"delta":{"content":"a"}}],"us'
        yield b'age":null}\n\ndata: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n'
        if self.mode == "cut":
            raise ConnectionAbortedError("of the test")
        if self.mode == "endless":
            try:
                while True:
                    await asyncio.sleep(0.01)
                    yield b": waiting\n\n"
            finally:
                self.gone.set()
        if (body.get("stream_options") or {}).get("include_usage"):
            yield b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
        yield b"data: [DONE]\n\n"


@contextmanager
def served(stub: Stub) -> Iterator[Stub]:
    listener = bind("127.0.0.1", 0)
    server = make_server(stub.app(), ListenConfig(port=0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    stub.url = url_of(listener)
    try:
        yield stub
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


@dataclass
class RunningGateway:
    url: str
    gateway: Gateway
    store: Store
    loop: asyncio.AbstractEventLoop


@contextmanager
def gateway_of(
    engines: list[str], folder: Path, place: Path | str | None = None, **settings: Any
) -> Iterator[RunningGateway]:
    """Waits until each engine has been checked once. `place` is the store's, by default a file in `folder`."""
    quick = {"poll_seconds": 0.05, "key_seconds": 0.0, "batches": {"poll_seconds": 0.05}}
    files = {"folder": str(folder / "files")} | settings.pop("files", {})
    config = GatewayConfig(port=0, engines=engines, files=files, **(quick | settings))
    listener = bind("127.0.0.1", 0)
    store = new_store(place or folder / "rondo.db")
    started: list[RunningGateway] = []
    ready = threading.Event()
    servers: list[Any] = []

    async def main() -> None:
        gateway = Gateway(config, store)
        server = make_server(gateway.app, config, gateway)
        servers.append(server)
        started.append(RunningGateway(url_of(listener), gateway, store, asyncio.get_running_loop()))
        await until(lambda: all(engine.checks for engine in gateway.fleet.engines.values()))
        ready.set()
        await server.serve(sockets=[listener])
        await gateway.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield started[0]
    finally:
        servers[0].should_exit = True
        thread.join(60)
        store.close()
        listener.close()


@contextmanager
def client_of(gateway: RunningGateway, rights: Rights | None = None) -> Iterator[openai.OpenAI]:
    """A client with a new key."""
    _, text = gateway.gateway.keys.make("test", rights or Rights()).result()
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=text, max_retries=0) as client:
        yield client
