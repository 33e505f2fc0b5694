"""Parsing of server responses: JSON, event streams, and errors as the original `RondoError`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from rondo.base.errors import Conflict, InvalidRequest, NotFound, Overloaded, RondoError, Unavailable

BY_STATUS: dict[int, type[RondoError]] = {
    400: InvalidRequest,
    404: NotFound,
    409: Conflict,
    429: Overloaded,
    503: Unavailable,
}

# An error inside a stream has no status of its own.
STATUS_BY_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "rate_limit_error": 429,
    "server_error": 503,
}
STATUS_BY_CODE = {"model_not_found": 404}


class LineSplitter:
    """Splits bytes at newlines alone: other separators of Unicode's may stand inside a server-sent event."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def push(self, data: bytes) -> list[bytes]:
        """Returns the complete lines."""
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._parts, ended[0]])
            self._parts = []
        self._parts.append(rest)
        return [line.removesuffix(b"\r") for line in ended]


class SseParser:
    """Incremental parser of server-sent events into JSON."""

    def __init__(self) -> None:
        self._lines = LineSplitter()

    def push(self, data: bytes) -> Iterator[dict[str, Any]]:
        for line in self._lines.push(data):
            event = event_of(line)
            if event is not None:
                yield event


def event_of(line: bytes) -> dict[str, Any] | None:
    """One event; None for blank lines, comments and the end. An error inside a stream is raised."""
    if not line.startswith(b"data:"):
        return None
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        shown = data[:80].decode("utf-8", "replace")
        raise RondoError(f"the server sent an event that is no JSON object: {shown}", code="bad_event")
    if "error" in event:
        raise error_of(None, event["error"])
    return event


def checked(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON; a refusal is raised."""
    body = _body(answer)
    if answer.is_success and isinstance(body, dict):
        return body
    raise refusal(answer)


def checked_verb(answer: httpx.Response) -> dict[str, Any]:
    """As `checked`, for admin operations, some of which return an empty body or a line of text."""
    kind = answer.headers.get("content-type", "")
    if answer.is_success and not kind.startswith("application/json"):
        return {"message": answer.text} if answer.text else {}
    return checked(answer)


def refusal(answer: httpx.Response) -> RondoError:
    body = _body(answer)
    details = body.get("error") if isinstance(body, dict) else None
    if details is None:
        details = f"{answer.url} answered {answer.status_code}, not as this API does."
    return error_of(answer.status_code, details)


def _body(answer: httpx.Response) -> object:
    try:
        return answer.json()
    except ValueError:
        return None


def error_of(status: int | None, details: object) -> RondoError:
    """`details` are OpenAI's `error` object, or a mere text; `status` is None inside a stream."""
    found: Mapping[str, Any] = details if isinstance(details, dict) else {"message": str(details)}
    code = found.get("code")
    if status is None:
        status = STATUS_BY_CODE.get(str(code)) or STATUS_BY_TYPE.get(str(found.get("type")), 500)
    message = str(found.get("message", "unknown error"))
    error = BY_STATUS.get(status, RondoError)(message, param=found.get("param"), code=code)
    error.status = status
    return error
