"""Outermost middleware: request ids, access log, spans, and the last handler of exceptions.

The id is the client's `X-Request-Id` or a generated one; it is in the response's headers and on every line logged
during the request. The access log has no query, no headers and no text, so that it holds no private data of a client.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rondo.base.ids import new_id
from rondo.base.telemetry.account import RequestStats, SampleStats
from rondo.base.telemetry.log import ShortLine, bind, get_logger
from rondo.base.telemetry.tracing import Tracer, usage
from rondo.web.errors import bug
from rondo.web.errors import log as errors

log = get_logger("rondo.access")

HEADER = b"x-request-id"
IGNORED = b"x-rondo-ignored"
GOOD_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
QUIET = frozenset(
    [
        *("/health", "/ping", "/ready", "/load", "/metrics", "/version"),
        *("/v1/health", "/v1/health/live", "/v1/health/ready", "/v1/health/keepalive"),
    ]
)
"""Paths that monitoring polls every few seconds are logged at debug."""
LONGEST_PATH = 200


class Access:
    """`lines`: whether requests are logged at all."""

    def __init__(self, app: ASGIApp, lines: bool = True, tracer: Tracer | None = None) -> None:
        self.app = app
        self.lines = lines
        self.tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        account = RequestStats(_request_id(scope))
        answer = _Answer(send, account)
        with bind(request_id=account.request_id), account:
            try:
                await self.app(scope, receive, answer)
            except Exception:
                if answer.status and not answer.whole:
                    raise  # Nothing but the end of its connection tells that an answer is cut off.
                errors.exception("%s %s failed", scope["method"], scope["path"][:LONGEST_PATH])
                if not answer.status:
                    await bug()(scope, receive, answer)
            finally:
                self._tell(scope, account, answer)

    def _tell(self, scope: Scope, account: RequestStats, answer: _Answer) -> None:
        ended = time.monotonic()
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        if self.lines and log.isEnabledFor(level):
            line = _line(scope, account, answer, ended)
            later = asyncio.get_running_loop().call_later
            message = ShortLine("request", lambda: short(line, account.request_id), later)
            # `Logger.log` would look for the caller's file and line.
            record = logging.LogRecord(log.name, level, "", 0, message, (), None)
            record.__dict__.update(line)
            log.handle(record)
        if self.tracer is not None and account.samples:
            headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in (b"traceparent", b"tracestate")
            }
            attributes = {
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "http.response.status_code": answer.status,
                "gen_ai.operation.name": operation(scope["path"]),
            }
            self.tracer.record(account, headers, ended, attributes)


class _Answer:
    """`send`, which adds the id and the ignored fields to the headers and records the status."""

    def __init__(self, send: Send, account: RequestStats) -> None:
        self.status = 0
        self.whole = False
        self._send = send
        self._account = account

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = [(HEADER, self._account.request_id.encode())]
            if self._account.ignored and self.status < 400:
                added.append((IGNORED, ", ".join(self._account.ignored).encode()))
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        elif message["type"] == "http.response.body":
            self.whole = not message.get("more_body", False)
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given: bytes = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given.decode() if GOOD_ID.fullmatch(given) else new_id("req")


def _line(scope: Scope, account: RequestStats, answer: _Answer, ended: float) -> dict[str, Any]:
    line: dict[str, Any] = {
        "method": scope["method"],
        # As it was sent, so that it is one word of ASCII.
        "path": scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:LONGEST_PATH],
        "status": answer.status,
        "seconds": round(ended - account.opened, 6),
    }
    if not answer.whole:
        line["cut_off"] = True
    return line | _of_samples(account.samples) if account.samples else line


def short(line: dict[str, Any], request_id: str) -> list[tuple[str, str]]:
    """Status, method, path, model, tokens in and out, time to first token, duration and the begin of the id, in 80
    columns for most requests."""
    status = line["status"]
    pieces = [
        (
            str(status or "---"),
            "red" if status >= 500 or not status else "yellow" if status >= 400 else "green",
        ),
        (line["method"], ""),
        (_cut(line["path"], 32), ""),
    ]
    if "model" in line:
        pieces += [
            (_cut(line["model"] or "-", 16), "cyan"),
            (f"{line['prompt_tokens']}→{line['output_tokens']}", ""),
            (f"ttft {_duration(line['first_token_seconds'])}", "dim"),
        ]
    pieces += [(_duration(line["seconds"]), "")]
    if "cut_off" in line:
        pieces.append(("cut off", "yellow"))
    return [*pieces, (request_id.removeprefix("req-")[:8], "dim")]


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _of_samples(samples: list[SampleStats]) -> dict[str, Any]:
    """For several samples, the slowest time of each kind."""
    prompt, output = usage(samples)
    return {
        "id": samples[0].id,
        "model": samples[0].model,
        "prompt_tokens": prompt,
        "cached_tokens": max(sample.cached_tokens for sample in samples),
        "output_tokens": output,
        "finish_reason": ",".join(sorted({sample.finish_reason for sample in samples})),
        "queue_seconds": round(max(sample.queue for sample in samples), 6),
        "first_token_seconds": round(max(sample.to_first for sample in samples), 6),
        "decode_seconds": round(max(sample.decode for sample in samples), 6),
    }


def operation(path: str) -> str:
    if "chat" in path or "responses" in path:
        return "chat"
    return "text_completion" if "completions" in path else "embeddings"
