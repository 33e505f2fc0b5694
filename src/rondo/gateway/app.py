"""The gateway's ASGI application: proxied routes directly, all others through FastAPI."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rondo import __version__
from rondo.base.errors import RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.tracing import Tracer
from rondo.control.keys import Keys
from rondo.control.limits import Limits
from rondo.control.store.store import Store
from rondo.control.usage import UsageLog
from rondo.gateway.auth import PROXIED, Authenticator
from rondo.gateway.config import GatewayConfig
from rondo.gateway.description import describe
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.completions import CREATE as CHAT
from rondo.gateway.proxy.completions import CompletionStorage
from rondo.gateway.proxy.forward import Forward
from rondo.gateway.proxy.stored import PATHS, StoredResponses
from rondo.gateway.proxy.upstream import Upstream
from rondo.gateway.queued.loader import QueueLoader
from rondo.gateway.queued.objects import Objects
from rondo.gateway.queued.service import QueueService
from rondo.gateway.routes import (
    batches,
    completions,
    conversations,
    engines,
    files,
    health,
    keys,
    page,
    responses,
    uploads,
)
from rondo.gateway.routes.queued import generate, generate_files, generate_work, leases, queue
from rondo.gateway.routes.training import (
    details,
    evals,
    fine_tuning,
    forecast,
    graders,
    jobs,
    models,
    nodes,
    permissions,
    registry,
    rollouts,
)
from rondo.gateway.routes.training.scalarlm import cluster, publish
from rondo.gateway.routes.training.scalarlm import train as scalarlm
from rondo.gateway.sources.discovery import Discovery
from rondo.gateway.sources.loading import Loading
from rondo.gateway.sources.registered import Registrations
from rondo.gateway.training.evals.runner import EvalRunner
from rondo.gateway.training.judges import Judges
from rondo.gateway.training.registry.service import RegistryService
from rondo.gateway.training.service import Training
from rondo.web.access import Access
from rondo.web.errors import error_body, on_bug, on_http_error, on_rondo_error
from rondo.web.hosts import protect
from rondo.web.http import bounded

log = get_logger("rondo.gateway")

QUEUE_ROUTES = (queue, leases, generate, generate_files, generate_work)
STORED_ROUTES = (files, uploads, batches, responses, completions, conversations)
TRAINING_ROUTES = (
    *(details, forecast, jobs, rollouts, nodes, fine_tuning, models, permissions, graders, evals),
    *(registry, scalarlm, publish, cluster),
)
ROUTERS = tuple(
    part.router for part in (keys, engines, *STORED_ROUTES, *QUEUE_ROUTES, *TRAINING_ROUTES, health, page)
)
PARSED = tuple(
    route.path_regex
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and route.body_field is not None
)
"""Paths whose bodies FastAPI reads and parses before it checks the key; all other routes bound them themselves."""
LARGEST_CONTROL_BODY = 8 << 20
"""Bytes of such a body."""
EVENTS = b"text/event-stream; charset=utf-8"
CLOSE_SECONDS = 5.0
"""Longest wait for each part of a gateway that closes."""
EXPOSED_HEADERS = (
    *("x-request-id", "x-rondo-ignored", "x-service-tier", "retry-after"),
    *(
        f"x-ratelimit-{kind}-{unit}"
        for kind in ("limit", "remaining", "reset")
        for unit in ("requests", "tokens")
    ),
)
"""Response headers that scripts of other origins may read."""


class Gateway:
    """The parts of a gateway, and its application. Created within the event loop that serves it."""

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.config, self.store = config, store
        self.keys = Keys(store)
        self.usage = UsageLog(store)
        self.auth = Authenticator(self.keys, config.guarded, config.key_seconds, config.engine_key)
        self.upstream = Upstream(config)
        self.fleet = Fleet(config, self.upstream)
        for url in config.engines:
            self.fleet.add(url)
        self.registrations = Registrations(self.fleet, store)
        self.loading = Loading(config, self.fleet, self.upstream)
        self.registry = RegistryService(config, store, self.fleet, self.upstream, self.loading)
        endpoint = config.otlp_traces_endpoint
        tracer = None if endpoint is None else Tracer(endpoint)
        self.queue = QueueService(config, store, self.fleet, self.usage, self.loading)
        self.queue_loader = QueueLoader(self.queue, self.loading)
        self.objects = Objects(config, store, self.queue)
        self.training = Training(config, store, self.objects, self.registry)
        self.forward = Forward(
            *(config, self.auth, Limits(), self.usage, self.fleet, self.upstream, self.loading, tracer),
            completions=CompletionStorage(self.objects.completions),
        )
        self.judges = Judges(self.forward, self.auth)
        self.evals = EvalRunner(self.objects, self.keys, self.judges)
        self.stored = StoredResponses(config, self.auth, self.objects, self.forward)
        self.control = make_control(self)
        self.own = _OwnRoutes(
            self.control, bounded(self.control, LARGEST_CONTROL_BODY, config.body_seconds, config.section)
        )
        self.app = self._wrapped()
        self.discovery = Discovery(config, self.fleet)

    failure: RondoError | None = None

    async def drain(self, seconds: float) -> None:
        """Ends long polls and event streams, refuses further model requests, and waits for the requests under way."""
        self.store.signals.close()
        self.forward.closing = True  # before event streams wake
        self.fleet.wake()
        await asyncio.gather(self.forward.drain(seconds), self.own.drain(seconds))

    async def close(self) -> None:
        await _close(self.discovery)
        await _close(self.registrations)
        with suppress(Unavailable):
            self.usage.flush()  # `Store.close` finishes it
        for part in (
            *(self.evals, self.training, self.registry, self.queue_loader, self.queue, self.objects),
            *(self.loading, self.forward.gate, self.fleet, self.upstream),
        ):
            await _close(part)

    def _wrapped(self) -> ASGIApp:
        forward, stored = self.forward, self.stored
        control = self.own

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if scope["method"] == "HEAD" and path in health.PROBES:
                await control({**scope, "method": "GET"}, receive, send)  # the server sends no body
            elif path not in PROXIED or (path in (responses.PATH, CHAT) and scope["method"] == "GET"):
                await control(scope, receive, send)
            elif scope["method"] != "POST":
                await _post_only(scope)(scope, receive, send)
            else:
                await (stored if path in PATHS else forward)(scope, receive, send)

        app: ASGIApp = dispatch
        if self.config.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.config.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        return Access(protect(app, self.config, self.config.cors_origins), self.config.access_log)


class _OwnRoutes:
    """Counts the requests to the gateway's own routes, so that uploads can finish. An event stream counts until it
    begins: it ends when the gateway closes. `small` reads the bodies of routes that FastAPI parses."""

    def __init__(self, app: ASGIApp, small: ASGIApp) -> None:
        self.app, self.small = app, small
        self._active: set[object] = set()
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = object()
        self._active.add(request)
        self._idle.clear()

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and (b"content-type", EVENTS) in message["headers"]:
                self._end(request)
            await send(message)

        try:
            parsed = any(each.match(scope["path"]) for each in PARSED)
            await (self.small if parsed else self.app)(scope, receive, note)
        finally:
            self._end(request)

    def _end(self, request: object) -> None:
        self._active.discard(request)
        if not self._active:
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Waits until none is under way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._active:
                    await self._idle.wait()


class _Part(Protocol):
    async def close(self) -> None: ...


async def _close(part: _Part) -> None:
    """Logs the name of a part that does not close in time, and leaves it."""
    name, closing = type(part).__name__, asyncio.ensure_future(part.close())
    done, _ = await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not done:
        log.error("a part of the gateway did not close in time", extra={"part": name})
    elif not closing.cancelled() and (error := closing.exception()) is not None:
        log.error("a part of the gateway failed to close", extra={"part": name}, exc_info=error)


def make_control(gateway: Gateway) -> FastAPI:
    """The gateway's own routes."""
    app = FastAPI(
        title="Rondo",
        version=__version__,
        openapi_url=None,
        redoc_url=None,
        docs_url=None,
        redirect_slashes=False,
        exception_handlers={
            RondoError: on_rondo_error,
            HTTPException: on_http_error,
            RequestValidationError: _on_invalid,
            Exception: on_bug,
        },
    )
    for router in ROUTERS:
        # `include_router` would make each route again, which the first requests to a gateway would wait for.
        app.router.routes.extend(router.routes)
    describe(app)
    state: dict[str, Any] = {
        "auth": gateway.auth,
        "keys": gateway.keys,
        "usage": gateway.usage,
        "fleet": gateway.fleet,
        "registrations": gateway.registrations,
        "loading": gateway.loading,
        "store": gateway.store,
        "queue": gateway.queue,
        "forward": gateway.forward,
        "objects": gateway.objects,
        "training": gateway.training,
        "evals": gateway.evals,
        "judges": gateway.judges,
        "registry": gateway.registry,
    }
    for name, value in state.items():
        setattr(app.state, name, value)
    return app


def _post_only(scope: Scope) -> Response:
    message = f"{scope['method'][:20]} is not allowed on {scope['path']}: use POST."
    return JSONResponse(
        error_body(message, "invalid_request_error", code="method_not_allowed"), 405, {"Allow": "POST"}
    )


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    message = f"{place}: {first['msg']}." if place else f"{first['msg']}."
    body = error_body(message, "invalid_request_error", param=place or None, code="invalid_value")
    return JSONResponse(body, status_code=400)


def schema() -> str:
    """Description of the gateway's routes, for the types of the web page: `python -m rondo.gateway.app`."""
    app = FastAPI(title="Rondo", version="0")
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    return json.dumps(app.openapi(), indent=1, sort_keys=True)


if __name__ == "__main__":
    print(schema())
