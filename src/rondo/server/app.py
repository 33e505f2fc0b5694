"""Engine server: one model behind the OpenAI API, with health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rondo import __version__
from rondo.base.errors import RondoError
from rondo.base.telemetry import metrics
from rondo.base.telemetry.account import current
from rondo.base.telemetry.tracing import Tracer
from rondo.client.engine import ServedEngine
from rondo.client.protocol.openai import ModelCard, ModelList
from rondo.client.types import Pooling
from rondo.engine.kv.events import CacheEvents
from rondo.engine.weights.weight_session import WeightSession
from rondo.models import ModelConfig
from rondo.server.answers.prompts import Prompts
from rondo.server.answers.replies import Replies
from rondo.server.answers.shapes import Tokens
from rondo.server.config import ServerConfig
from rondo.server.openapi import openapi_route
from rondo.server.routes.adapters import ADAPTER_PATHS, adapter_routes
from rondo.server.routes.chat import chat
from rondo.server.routes.completions import completions
from rondo.server.routes.embeddings import Dimensions, Embedder
from rondo.server.routes.kv_events import kv_events_route
from rondo.server.routes.lifecycle import lifecycle_routes
from rondo.server.routes.responses import input_tokens, responses, stored_routes
from rondo.server.routes.rollouts import RL, rollout_routes
from rondo.server.routes.scoring import PairScorer
from rondo.server.routes.tokenize import detokenize, tokenize, tokenizer_info_route
from rondo.server.routes.weights import weight_routes
from rondo.server.served import Salts, ServedModel, Use
from rondo.server.workers.bodies import Bodies, body_limit
from rondo.server.workers.templates import Templates
from rondo.text.parsing import choose_dialect
from rondo.text.tokenizer import Tokenizer
from rondo.web.access import Access
from rondo.web.errors import error_body, of_rondo, on_bug, on_http_error, on_rondo_error
from rondo.web.hosts import protect
from rondo.web.http import bearer_of, check_json

OUTSIDE_V1 = (
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/score",
    "/rerank",
    "/v2/rerank",
)
"""Model routes outside `/v1`, under vLLM's names."""


def create_app(
    engine: ServedEngine,
    model: ModelConfig,
    tokenizer: Tokenizer,
    name: str,
    config: ServerConfig,
    aliases: Iterable[str] = (),
    pooling: Pooling = "last",
    events: CacheEvents | None = None,
) -> ASGIApp:
    """Clients may request the model as `name`, which responses show, or as one of `aliases`. `events` are those of the
    engine's prefix cache."""
    largest = config.max_body_bytes or body_limit(engine.max_model_len)
    templates = Templates(config.template_seconds, config.template_characters or 2 * largest)
    served = ServedModel(
        engine=engine,
        prompts=Prompts(tokenizer, engine.max_model_len, model.vocab_size, templates=templates),
        replies=_replies(tokenizer, config),
        tokens=Tokens(tokenizer),
        name=name,
        aliases=frozenset(aliases),
        max_model_len=engine.max_model_len,
        max_queued=engine.max_queued,
        bodies=Bodies(largest, engine.max_model_len, config.body_seconds, events),
        allow_priority=config.allow_priority,
        created=int(time.time()),
        salts=Salts(config.api_key or ()),
        eos_ids=tuple(tokenizer.eos_ids or model.eos_ids),
    )
    embedder = Embedder(served, pooling, Dimensions.of(model, config.matryoshka))
    scorer = PairScorer(embedder)
    session, use = WeightSession(engine, model.hf), Use()
    routes: list[BaseRoute] = [
        _post("/v1/chat/completions", lambda request: chat(served, request)),
        _post("/v1/responses", lambda request: responses(served, request)),
        _post("/v1/responses/input_tokens", lambda request: input_tokens(served, request)),
        *stored_routes(),
        _post("/v1/completions", lambda request: completions(served, request)),
        _post("/tokenize", lambda request: tokenize(served, request)),
        _post("/detokenize", lambda request: detokenize(served, request)),
        tokenizer_info_route(tokenizer),
        _post("/v1/embeddings", embedder.embeddings),
        *(_post(path, scorer.score) for path in ("/score", "/v1/score")),
        *(_post(path, scorer.rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
        *_model_routes(served),
        *_health_routes(engine, config, use),
        *lifecycle_routes(engine, served, session, config.admin_key),
        *weight_routes(session, config.admin_key),
        *adapter_routes(engine, served, config.admin_key),
        *rollout_routes(config.admin_key),
        kv_events_route(events, config.api_key or ()),
    ]
    routes.append(openapi_route(routes))
    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers={RondoError: on_rondo_error, HTTPException: on_http_error, Exception: on_bug},
    )
    asked = [route for route in routes if isinstance(route, Route) and isinstance(route.endpoint, ModelApp)]
    app = _straight(app, {route.path: route.endpoint for route in asked}, use)
    if config.api_key is not None:
        app = require_key(app, config.api_key)
    app = protect(app, config)
    endpoint = config.otlp_traces_endpoint
    return Access(app, config.access_log, None if endpoint is None else Tracer(endpoint))


def _replies(tokenizer: Tokenizer, config: ServerConfig) -> Replies:
    template = tokenizer.tool_template
    dialect = choose_dialect(template, config.tool_call_parser, config.reasoning_parser)
    return Replies(dialect, tokenizer, config.auto_tool_choice)


class ModelApp:
    """The model routes as an ASGI application, callable without the router."""

    def __init__(self, handler: Callable[[Request], Awaitable[ASGIApp]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            check_json(request)
            await (await self._handler(request))(scope, receive, send)
            return
        except ClientDisconnect:
            refused = Response(status_code=499)
        except RondoError as error:
            refused = of_rondo(error)
        await refused(scope, receive, send)


def _post(path: str, handler: Callable[[Request], Awaitable[ASGIApp]]) -> Route:
    return Route(path, ModelApp(handler), methods=["POST"])


def _straight(app: ASGIApp, posted: Mapping[str, ASGIApp], use: Use) -> ASGIApp:
    """Dispatches model routes by path alone: the router's layers have no effect on them, and each adds to the latency
    of a short request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        straight = posted.get(scope["path"]) if scope.get("method") == "POST" else None
        if straight is None:
            await app(scope, receive, send)
            return
        with use.request():
            await straight(scope, receive, send)

    return answer


def _model_routes(served: ServedModel) -> list[Route]:
    aliases = tuple(alias for alias in sorted(served.aliases) if alias[0] not in "./~")  # folders are private

    def card(adapter: str | None = None) -> ModelCard:
        facts = {"created": served.created, "max_model_len": served.max_model_len}
        if adapter is None:
            return ModelCard(id=served.name, aliases=aliases, **facts)
        return ModelCard(id=adapter, parent=served.name, **facts)

    async def models(request: Request) -> Response:
        cards = [card(), *(card(adapter) for adapter in served.adapters)]
        return JSONResponse(ModelList(data=cards).model_dump())

    async def model(request: Request) -> Response:
        return JSONResponse(card(served.adapter(request.path_params["name"])).model_dump())

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _health_routes(engine: ServedEngine, config: ServerConfig, use: Use) -> list[Route]:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"}) if engine.failure is None else of_rondo(engine.failure)

    async def ready(request: Request) -> Response:
        if engine.failure is not None:
            return of_rondo(engine.failure)
        return JSONResponse({"ready": engine.ready}, status_code=200 if engine.ready else 503)

    async def version(request: Request) -> Response:
        return JSONResponse({"version": __version__, "weight_version": engine.weight_version})

    async def load(request: Request) -> Response:
        running, waiting = engine.load()
        idle = round(use.idle_seconds, 3)
        shown = {
            "server_load": running + waiting,
            "running": running,
            "waiting": waiting,
            "max_running": engine.max_running,
            "idle_seconds": idle,
        }
        return JSONResponse(shown | engine.kv_load())

    async def show_metrics(request: Request) -> Response:
        # In a thread: a vLLM in another process is asked for its own.
        text = await asyncio.to_thread(metrics.render, config.metrics_alias)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    return [
        Route("/health", health),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/ready", ready),
        Route("/version", version),
        Route("/load", load),
        Route("/metrics", show_metrics),
    ]


def _needs_key(path: str) -> bool:
    if path in ADAPTER_PATHS or path.startswith(RL):
        return False
    return path.startswith("/v1") or path in OUTSIDE_V1


def require_key(app: ASGIApp, keys: Sequence[str]) -> ASGIApp:
    """Model routes need `Authorization: Bearer <key>`; health and metrics stay open. Admin routes have a separate
    key."""
    expected = [key.encode() for key in keys]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _needs_key(scope["path"]):
            given = bearer_of(scope["headers"])
            # Every key is compared, so that the time does not reveal a nearly right one.
            right = [hmac.compare_digest(given, one) for one in expected]
            if not any(right):
                message = "a valid API key is needed: send it as 'Authorization: Bearer <key>'."
                body = error_body(message, "authentication_error", code="invalid_api_key")
                await JSONResponse(body, status_code=401)(scope, receive, send)
                return
            if (account := current()) is not None:
                account.api_key = given.decode()
        await app(scope, receive, send)

    return guarded
