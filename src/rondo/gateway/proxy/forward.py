"""Forwards a model request: key, limits, choice of an engine, and retries until the first byte of the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from rondo.base.errors import NotFound, NotReady, RondoError, Unavailable
from rondo.base.ids import new_id
from rondo.base.telemetry.account import current
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.tracing import Tracer
from rondo.client.protocol.item import with_model
from rondo.control.limits import Limits
from rondo.control.routing.router import Route
from rondo.control.usage import UsageLog
from rondo.gateway.auth import PROXIED, Authenticator, in_time
from rondo.gateway.config import GatewayConfig
from rondo.gateway.fleet import Fleet
from rondo.gateway.proxy.completions import CREATE, CompletionStorage
from rondo.gateway.proxy.connection import EngineResponse, HungUp
from rondo.gateway.proxy.counters import RETRIES, requests_of, tokens_of
from rondo.gateway.proxy.fields import READ_AT_ONCE, Fields, read_fields, with_usage
from rondo.gateway.proxy.gate import Gate
from rondo.gateway.proxy.metering import TokenMeter
from rondo.gateway.proxy.ticket import Forwarded, ticket_of
from rondo.gateway.proxy.upstream import Upstream, passed_on
from rondo.gateway.sources.loading import Loading
from rondo.web.errors import error_body, of_rondo
from rondo.web.http import check_json, event_of, read_body, unless_gone

log = get_logger("rondo.gateway")

RETRIED = frozenset([502, 503])
"""Statuses of an engine that did not begin the request."""
EVENTS = b"text/event-stream"
GONE = 499


class CutOff(Exception):
    """An engine failed within a JSON response."""


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
        loading: Loading,
        tracer: Tracer | None = None,
        completions: CompletionStorage | None = None,
    ) -> None:
        self.config, self.auth, self.limits, self.usage = config, auth, limits, usage
        self.fleet, self.upstream, self.loading = fleet, upstream, loading
        self.gate = Gate(fleet)
        self.tracer, self.completions = tracer, completions
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
            await unless_gone(receive, self._forward(request, send), scope)
        except ClientDisconnect:
            return None if request is not None and request.started else Response(status_code=GONE)
        except CutOff:
            return None  # the connection is closed before the body is complete
        except RondoError as error:
            refused = of_rondo(error)
            if request is not None:
                request.trace.status = refused.status_code
            return refused
        finally:
            if request is not None:
                meter = request.meter
                tokens = (None, None) if meter is None else (meter.input_tokens, meter.output_tokens)
                request.trace.end(request.path, request.fields.model, request.request_id, tokens)
        return None

    async def _read(self, scope: Scope, receive: Receive) -> Forwarded:
        if self.closing:
            raise NotReady("The gateway is shutting down: try again in a few seconds.", code="shutting_down")
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        key = await self.auth.key_of(headers)
        path = scope["path"]
        key.may(PROXIED[path])
        request = Request(scope, receive)
        check_json(request)
        body = await read_body(
            request, self.config.max_body_bytes, self.config.body_seconds, section=self.config.section
        )
        fields = await self._fields(body)
        key.may_use(fields.model)
        target = await self.loading.resolve(fields.model)
        if target != fields.model:
            body, fields = with_model(body, target), replace(fields, model=target)
        account = current()
        forwarded = Forwarded(
            path, key, fields, body, headers, account.request_id if account else new_id("req")
        )
        forwarded.headers = forwarded.trace.begin(self.tracer, headers, account)
        if key.rights.tokens_per_day is not None:
            await in_time(self.usage.check_quota(key))
        forwarded.limits = self.limits.take(key, fields.tokens)
        forwarded.ticket = ticket_of(forwarded, self.config.router.decode_factor)
        return forwarded

    async def _fields(self, body: bytes) -> Fields:
        router = self.config.router
        longest = router.longest if len(self.fleet.engines) > 1 else 0  # there is a choice
        if len(body) <= READ_AT_ONCE:
            return read_fields(body, router.piece, longest)
        return await asyncio.to_thread(read_fields, body, router.piece, longest)

    async def _forward(self, request: Forwarded, send: Send) -> None:
        try:
            if request.fields.store and request.path == CREATE and self.completions is not None:
                send = await self.completions.begin(request, send)
            body = await _with_counts(request) if request.strip else request.body
            while not await self._attempt(request, body, send):
                pass
        finally:
            self._account(request)

    async def _attempt(self, request: Forwarded, body: bytes, send: Send) -> bool:
        """Whether the response was sent; otherwise another engine may be tried."""
        ticket = request.ticket
        try:
            route = await self._route(request)
        except asyncio.CancelledError:
            if self.gate.continues(ticket):  # it was placed and preempted before this task resumed
                return False
            raise
        url = route.instance.url
        request.trace.choose(url)
        well: bool | None = True
        response = None
        try:
            response = await self.upstream.post(url, request.path, body, request.headers, request.request_id)
            if response.status in RETRIED and self._may_retry(request, url):
                well = False
                return False
            await self._pass_on(response, request, url, send)
            return True
        except OSError as error:
            well = False
            self.fleet.suspect(route.instance)
            return await self._failed(request, route, error, send)
        except asyncio.CancelledError:
            well = request.started or None
            if self.gate.continues(ticket):
                return False
            raise
        finally:
            if response is not None:
                response.close()
            self.gate.leave(ticket, well)

    async def _route(self, request: Forwarded) -> Route:
        """An engine for the request, after the model was loaded if no engine serves it."""
        try:
            return await self._enter(request, request.tried)
        except (NotFound, Unavailable):
            if not await self.loading.ensure(request.fields.model):
                raise
        return await self._enter(request, ())

    async def _enter(self, request: Forwarded, tried: Sequence[str]) -> Route:
        try:
            return await self.gate.enter(request.ticket, tried)
        except NotFound:
            if self.fleet.starting:
                raise NotReady(
                    f"No engine serves {request.fields.model!r} yet, and some are still starting: "
                    "try again in a few seconds.",
                    code="engines_starting",
                ) from None
            raise

    def _may_retry(self, request: Forwarded, url: str) -> bool:
        """Whether another engine that may answer is left."""
        request.tried.append(url)
        left = [
            each
            for each in self.fleet.router.instances
            if request.fields.model in each.models and each.healthy and each.url not in request.tried
        ]
        may = bool(left) or self.loading.offers(request.fields.model)
        may = may and len(request.tried) < self.config.attempts
        if may:
            RETRIES.labels(url).inc()
        return may

    async def _failed(self, request: Forwarded, route: Route, error: Exception, send: Send) -> bool:
        url = route.instance.url
        reason = f"{type(error).__name__}: {error}"[:300]
        log.warning("an engine failed", extra={"engine": url, "error": reason, "begun": request.started})
        if not request.started:
            if isinstance(error, HungUp) and not request.repeated:
                request.repeated = True  # the engine closed an idle connection as the request was sent on it
                return False
            if self._may_retry(request, url):
                return False
            requests_of(url, 503).inc()
            raise NotReady(
                f"The engine of {request.fields.model!r} did not answer: try again in a few seconds.",
                code="engine_unavailable",
            )
        if request.meter is None or not request.meter.stream:
            # Only the end of the connection shows that the body is cut off.
            raise CutOff(reason)
        message = "the engine failed while it generated this response: send the request again."
        event = event_of(error_body(message, "server_error", code="engine_failed"))
        await send({"type": "http.response.body", "body": event, "more_body": False})
        return True

    async def _pass_on(self, response: EngineResponse, request: Forwarded, url: str, send: Send) -> None:
        headers = passed_on(response.headers)
        headers += [(name.encode(), value.encode()) for name, value in request.limits.items()]
        given = dict(response.headers)
        kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
        request.trace.status = response.status
        meter = request.meter = TokenMeter(kind == EVENTS, request.strip)
        if not meter.stream and (length := given.get(b"content-length")) is not None:
            headers.append((b"content-length", length))
        start: Message = {"type": "http.response.start", "status": response.status, "headers": headers}
        await self._send_body(response, request, meter, start, send)
        requests_of(url, response.status).inc()

    async def _send_body(
        self,
        response: EngineResponse,
        request: Forwarded,
        meter: TokenMeter,
        start: Message,
        send: Send,
    ) -> None:
        """The status is sent with the first bytes of the body, so that an engine that dies before can be replaced."""
        last = False
        while not last:
            chunk, last = await response.read()
            part = meter.feed(chunk)
            if last:
                part += meter.finish()  # one packet for the last part and the end
            if not (part or last):
                continue
            if not request.started:
                request.started, request.trace.first = True, time.monotonic()
                self.gate.began(request.ticket)
                await send(start)
            await send({"type": "http.response.body", "body": part, "more_body": not last})

    def _account(self, request: Forwarded) -> None:
        used = _used(request)
        key, model, estimate = request.key, request.fields.model, request.fields.tokens
        self.limits.settle(key, estimate, sum(used) if used else estimate if request.started else 0)
        if used is None:
            return
        given, made = used
        tokens_of(model, "input").inc(given)
        tokens_of(model, "output").inc(made)
        self.usage.add(key.id, model, 1, given, made)

    async def drain(self, seconds: float) -> None:
        """Refuses further requests, and waits until those under way have ended."""
        self.closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


async def _with_counts(request: Forwarded) -> bytes:
    """The request's body, with the event of token counts requested."""
    body, options = request.body, request.fields.stream_options
    if len(body) <= READ_AT_ONCE:
        return with_usage(body, options)
    return await asyncio.to_thread(with_usage, body, options)


def _used(request: Forwarded) -> tuple[int, int] | None:
    """Input and output tokens. For a stream without counts, for example after a disconnect, the estimate is the size of
    the prompt and one token for each event."""
    meter = request.meter
    if meter is None:
        return None
    if meter.tokens is not None:
        return meter.input_tokens or 0, meter.output_tokens or 0
    if meter.stream and request.started and request.trace.status == 200:
        return request.fields.prompt_tokens, meter.events
    return None
