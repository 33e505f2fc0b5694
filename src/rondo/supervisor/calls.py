"""Calls of the supervisor to its engines: readiness, load, adapters."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import InvalidRequest, Unavailable

CALL_SECONDS = 5.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FAILED = (OSError, ValueError, http.client.HTTPException)


@dataclass(frozen=True)
class EngineKeys:
    """Keys of the engines of one supervisor."""

    api: str
    admin: str


@dataclass(frozen=True)
class LoadReport:
    busy: bool
    idle: float
    """Seconds since the latest request."""


def is_ready(url: str) -> bool:
    try:
        _call(url + "/ready")
    except FAILED:
        return False
    return True


def is_alive(url: str) -> bool:
    """Whether a server answers, ready or not: an engine that is paused or asleep is alive."""
    try:
        _call(url + "/ready")
    except urllib.error.HTTPError:
        return True
    except FAILED:
        return False
    return True


def read_load(url: str) -> LoadReport | None:
    """None if the engine does not answer."""
    try:
        report = json.loads(_call(url + "/load"))
        return LoadReport(report["running"] + report["waiting"] > 0, float(report["idle_seconds"]))
    except (*FAILED, KeyError, TypeError):
        return None


def load_adapter(url: str, name: str, folder: str, keys: EngineKeys, seconds: float) -> None:
    """Serves the adapter, unless the engine serves it already."""
    try:
        listed = json.loads(_call(url + "/v1/models", {"Authorization": f"Bearer {keys.api}"}))
        if any(card["id"] == name for card in listed["data"]):
            return
        body = {"lora_name": name, "lora_path": folder}
        _call(url + "/v1/load_lora_adapter", {"X-Admin-Key": keys.admin}, body, max(1.0, seconds))
    except urllib.error.HTTPError as error:
        raise InvalidRequest(
            f"The engine {url} does not load the adapter {name!r}: {_message(error)}",
            param="model",
            code="adapter_load_failed",
        ) from error
    except FAILED as error:
        raise Unavailable(
            f"The engine {url} did not answer while it loaded the adapter {name!r}: try again.",
            code="adapter_load_failed",
        ) from error


def unload_adapter(url: str, name: str, keys: EngineKeys) -> bool:
    """Whether the engine served the adapter."""
    try:
        _call(url + "/v1/unload_lora_adapter", {"X-Admin-Key": keys.admin}, {"lora_name": name})
    except FAILED:
        return False
    return True


def _call(
    url: str, headers: dict[str, str] | None = None, body: Any = None, seconds: float = CALL_SECONDS
) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {"Content-Type": "application/json"} | (headers or {}), method="POST" if data else "GET"
    )
    with _direct.open(request, timeout=seconds) as response:
        answer: bytes = response.read()
        return answer


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read(65536).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300] or str(error)
