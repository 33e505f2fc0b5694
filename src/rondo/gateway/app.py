"""The gateway's ASGI application: proxied routes directly, all others through FastAPI."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rondo import __version__
from rondo.base.errors import RondoError
from rondo.base.telemetry.tracing import Tracer
from rondo.control.keys import Keys
from rondo.control.limits import Limits
from rondo.control.store.store import Store
from rondo.control.usage import UsageLog
from rondo.gateway.auth import PROXIED, Authenticator
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.forward import Forward
from rondo.gateway.proxy.upstream import Upstream
from rondo.gateway.routes import engines, health, keys, page
from rondo.web.access import Access
from rondo.web.errors import error_body, on_bug, on_http_error, on_rondo_error
from rondo.web.hosts import protect

ROUTERS = tuple(part.router for part in (keys, engines, health, page))
EXPOSED_HEADERS = ("x-request-id", "x-ratelimit-*", "retry-after")


class Gateway:
    """The parts of a gateway, and its application. Created within the event loop that serves it."""

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.config, self.store = config, store
        self.keys = Keys(store)
        self.usage = UsageLog(store)
        self.auth = Authenticator(self.keys, config.guarded, config.key_seconds)
        self.upstream = Upstream(config)
        self.fleet = Fleet(config, self.upstream)
        self.forward = Forward(config, self.auth, Limits(), self.usage, self.fleet, self.upstream)
        self.control = make_control(self)
        self.app = self._wrapped()
        for url in config.engines:
            self.fleet.add(url)

    failure: RondoError | None = None

    async def drain(self, seconds: float) -> None:
        await self.forward.drain(seconds)

    async def close(self) -> None:
        await self.fleet.close()
        await self.upstream.close()

    def _wrapped(self) -> ASGIApp:
        control, forward = self.control, self.forward

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            proxied = scope.get("method") == "POST" and scope["path"] in PROXIED
            await (forward if proxied else control)(scope, receive, send)

        app: ASGIApp = dispatch
        if self.config.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.config.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            )
        endpoint = self.config.otlp_traces_endpoint
        tracer = None if endpoint is None else Tracer(endpoint)
        return Access(protect(app, self.config), self.config.access_log, tracer)


def make_control(gateway: Gateway) -> FastAPI:
    """The gateway's own routes."""
    app = FastAPI(
        title="Rondo",
        version=__version__,
        redoc_url=None,
        docs_url=None,
        exception_handlers={
            RondoError: on_rondo_error,
            HTTPException: on_http_error,
            RequestValidationError: _on_invalid,
            Exception: on_bug,
        },
    )
    for router in ROUTERS:
        app.include_router(router)
    state: dict[str, Any] = {
        "auth": gateway.auth,
        "keys": gateway.keys,
        "usage": gateway.usage,
        "fleet": gateway.fleet,
        "store": gateway.store,
        "forward": gateway.forward,
    }
    for name, value in state.items():
        setattr(app.state, name, value)
    return app


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    message = f"{place}: {first['msg']}." if place else f"{first['msg']}."
    body = error_body(message, "invalid_request_error", param=place or None, code="invalid_value")
    return JSONResponse(body, status_code=400)
