"""Times of a request in the gateway, and its span, which is the parent of the engine's span."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.telemetry.account import RequestStats
from rondo.base.telemetry.tracing import OpenSpan, Tracer
from rondo.web.access import operation

CONTEXT = (b"traceparent", b"tracestate")
"""Headers of the W3C that carry a trace from server to server."""
Headers = list[tuple[bytes, bytes]]


@dataclass
class RequestTrace:
    opened: float = field(default_factory=time.monotonic)
    engines: list[str] = field(default_factory=list)
    """URLs of the engines that received the request, in order."""
    chosen: float | None = None
    """Time of the latest choice of an engine; before it, the request waited for an engine."""
    first: float | None = None
    """Time of the first byte of the response."""
    status: int = 0
    span: OpenSpan | None = None

    def begin(self, tracer: Tracer | None, headers: Headers, account: RequestStats | None) -> Headers:
        """Headers for the engine."""
        if tracer is None:
            return headers
        given = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in CONTEXT
        }
        self.span = tracer.begin("gateway_request", given, account.opened_at if account else time.time())
        own = [(name.encode(), value.encode()) for name, value in self.span.headers.items()]
        return [(name, value) for name, value in headers if name not in CONTEXT] + own

    def choose(self, engine: str) -> None:
        self.engines.append(engine)
        self.chosen = time.monotonic()

    def end(self, path: str, model: str, request_id: str, tokens: Sequence[int | None]) -> None:
        if self.span is None:
            return
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation(path),
            "gen_ai.request.id": request_id,
            "gen_ai.request.model": model,
            "http.request.method": "POST",
            "http.response.status_code": self.status,
            "rondo.retries": max(0, len(self.engines) - 1),
            "url.path": path,
        }
        if self.chosen is not None:
            attributes["rondo.engine"] = self.engines[-1]
            attributes["rondo.queue_seconds"] = self.chosen - self.opened
        if self.first is not None:
            attributes["rondo.first_byte_seconds"] = self.first - self.opened
        for name, count in zip(("input_tokens", "output_tokens"), tokens, strict=True):
            if count is not None:
                attributes[f"gen_ai.usage.{name}"] = count
        self.span.end(attributes, self.status >= 500 or self.status == 0)
