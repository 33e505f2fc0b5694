"""Forwards a model request: key, limits, choice of an engine, and retries until the first byte of the response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from rondo.base.errors import NotFound, RondoError, Unavailable
from rondo.base.ids import new_id
from rondo.base.telemetry import metrics
from rondo.base.telemetry.account import current
from rondo.base.telemetry.log import get_logger
from rondo.control.key import Key
from rondo.control.limits import Limits
from rondo.control.router import Route
from rondo.control.usage import UsageLog
from rondo.gateway.auth import PROXIED, Authenticator
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.fields import Fields, read_fields, with_usage
from rondo.gateway.proxy.metering import TokenMeter
from rondo.gateway.proxy.upstream import Upstream, passed_on
from rondo.web.errors import error_body, of_rondo
from rondo.web.http import check_json, event_of, read_body, unless_gone

log = get_logger("rondo.gateway")

STREAMED_WITH_OPTIONS = frozenset(["/v1/chat/completions", "/v1/completions"])
"""Routes whose streams state token counts on request only."""
RETRIED = frozenset([502, 503])
"""Statuses of an engine that did not begin the request."""
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)
GONE = 499

REQUESTS = metrics.counter(
    "gateway_requests", "Requests to models, by engine and status of the response", ("engine", "status")
)
RETRIES = metrics.counter(
    "gateway_retries", "Requests that another engine received after a failure", ("engine",)
)
TOKENS = metrics.counter("gateway_tokens", "Tokens of requests, by model and kind", ("model", "kind"))


@dataclass
class Forwarded:
    """One request and its state."""

    path: str
    key: Key
    fields: Fields
    body: bytes
    headers: list[tuple[bytes, bytes]]
    request_id: str
    limits: dict[str, str] = field(default_factory=dict)
    meter: TokenMeter | None = None
    """Of the response that is passed on."""
    tried: list[str] = field(default_factory=list)
    started: bool = False

    @property
    def strip(self) -> bool:
        """Whether the event of token counts is requested for the gateway alone."""
        streams = self.fields.stream and self.path in STREAMED_WITH_OPTIONS
        return streams and not self.fields.wants_usage


class Forward:
    """An ASGI application for the proxied routes."""

    def __init__(
        self,
        config: GatewayConfig,
        auth: Authenticator,
        limits: Limits,
        usage: UsageLog,
        fleet: Fleet,
        upstream: Upstream,
    ) -> None:
        self.config, self.auth, self.limits, self.usage = config, auth, limits, usage
        self.fleet, self.upstream = fleet, upstream
        self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.active += 1
        self._idle.clear()
        try:
            refused = await self._answer(scope, receive, send)
            if refused is not None:
                await refused(scope, receive, send)
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        request = None
        try:
            request = await self._read(scope, receive)
            await unless_gone(receive, self._forward(request, send))
        except ClientDisconnect:
            return None if request is not None and request.started else Response(status_code=GONE)
        except RondoError as error:
            return of_rondo(error)
        return None

    async def _read(self, scope: Scope, receive: Receive) -> Forwarded:
        if self.closing:
            raise Unavailable(
                "The gateway is shutting down: try again in a few seconds.", code="shutting_down"
            )
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        key = await self.auth.key_of(headers)
        path = scope["path"]
        key.may(PROXIED[path])
        request = Request(scope, receive)
        check_json(request)
        body = await read_body(request, self.config.max_body_bytes, self.config.body_seconds)
        fields = read_fields(body)
        key.may_use(fields.model)
        account = current()
        forwarded = Forwarded(
            path, key, fields, body, headers, account.request_id if account else new_id("req")
        )
        await self.usage.check_quota(key)
        forwarded.limits = self.limits.take(key, fields.tokens)
        return forwarded

    async def _forward(self, request: Forwarded, send: Send) -> None:
        body = with_usage(request.body) if request.strip else request.body
        try:
            while not await self._attempt(request, body, send):
                pass
        finally:
            self._account(request)

    async def _attempt(self, request: Forwarded, body: bytes, send: Send) -> bool:
        """Whether the response was sent; otherwise another engine may be tried."""
        fields = request.fields
        route = self._choose(fields, request.tried)
        url = route.instance.url
        well = True
        try:
            async with self._response(url + request.path, body, request) as response:
                if response.status in RETRIED and self._may_retry(request, url):
                    well = False
                    return False
                await self._pass_on(response, request, send)
            return True
        except UNREACHABLE as error:
            well = False
            self.fleet.suspect(route.instance)
            return await self._failed(request, route, error, send)
        finally:
            self.fleet.router.ended(route, well)

    def _choose(self, fields: Fields, tried: list[str]) -> Route:
        try:
            return self.fleet.router.choose(fields.model, fields.prompt, fields.answer_bytes, tried)
        except NotFound:
            if self.fleet.starting:
                raise Unavailable(
                    f"No engine serves {fields.model!r} yet, and some are still starting: try again in a few seconds.",
                    code="engines_starting",
                ) from None
            raise

    @asynccontextmanager
    async def _response(
        self, url: str, body: bytes, request: Forwarded
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self.upstream.post(url, body, request.headers, request.request_id)
        try:
            yield response
            response.release()
        except BaseException:
            response.close()  # so that the engine stops generating
            raise

    def _may_retry(self, request: Forwarded, url: str) -> bool:
        """Whether another engine that may answer is left."""
        request.tried.append(url)
        left = [
            each
            for each in self.fleet.router.instances
            if request.fields.model in each.models and each.healthy and each.url not in request.tried
        ]
        may = bool(left) and len(request.tried) < self.config.attempts
        if may:
            RETRIES.labels(url).inc()
        return may

    async def _failed(self, request: Forwarded, route: Route, error: Exception, send: Send) -> bool:
        url = route.instance.url
        reason = f"{type(error).__name__}: {error}"[:300]
        log.warning("an engine failed", extra={"engine": url, "error": reason, "begun": request.started})
        if not request.started:
            if self._may_retry(request, url):
                return False
            REQUESTS.labels(url, "503").inc()
            raise Unavailable(
                f"The engine of {request.fields.model!r} did not answer: try again in a few seconds.",
                code="engine_unavailable",
            )
        if request.meter is None or not request.meter.stream:
            # Only the end of the connection shows that the body is cut off.
            raise ConnectionResetError(reason)
        message = "the engine failed while it generated this response: send the request again."
        event = event_of(error_body(message, "server_error", code="engine_failed"))
        await send({"type": "http.response.body", "body": event, "more_body": False})
        return True

    async def _pass_on(self, response: aiohttp.ClientResponse, request: Forwarded, send: Send) -> None:
        headers = passed_on(response)
        headers += [(name.encode(), value.encode()) for name, value in request.limits.items()]
        length = response.headers.get("Content-Length")
        meter = request.meter = TokenMeter(response.content_type == "text/event-stream", request.strip)
        if length is not None and not meter.stream:
            headers.append((b"content-length", length.encode()))
        start: Message = {"type": "http.response.start", "status": response.status, "headers": headers}
        await self._send_body(response, request, meter, start, send)
        REQUESTS.labels(request_engine(response), str(response.status)).inc()

    async def _send_body(
        self,
        response: aiohttp.ClientResponse,
        request: Forwarded,
        meter: TokenMeter,
        start: Message,
        send: Send,
    ) -> None:
        """The status is sent with the first bytes of the body, so that an engine that dies before can be replaced."""
        async for chunk in response.content.iter_any():
            part = meter.feed(chunk)
            if part:
                if not request.started:
                    request.started = True
                    await send(start)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        if not request.started:
            request.started = True
            await send(start)
        await send({"type": "http.response.body", "body": meter.finish(), "more_body": False})

    def _account(self, request: Forwarded) -> None:
        meter = request.meter
        used = None if meter is None else meter.tokens
        key, estimate = request.key, request.fields.tokens
        self.limits.settle(key, estimate, used if used is not None else estimate if request.started else 0)
        if meter is None or used is None:
            return
        given, made = meter.input_tokens or 0, meter.output_tokens or 0
        model = request.fields.model
        TOKENS.labels(model, "input").inc(given)
        TOKENS.labels(model, "output").inc(made)
        self.usage.add(key.id, model, 1, given, made)

    async def drain(self, seconds: float) -> None:
        """Refuses new requests, and waits until those under way have ended."""
        self.closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


def request_engine(response: aiohttp.ClientResponse) -> str:
    return str(response.url.origin())
