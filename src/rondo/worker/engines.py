"""The engine of a worker: an application in this process, or a server behind a URL."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from starlette.types import ASGIApp, Message, Scope

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 30.0
"""Below the engine servers' own limit, so that a connection is not closed while a request is sent on it."""


@dataclass(frozen=True)
class EngineReply:
    status: int
    body: bytes

    @property
    def is_json(self) -> bool:
        try:
            self.body.decode()  # a raw value may have any bytes
            msgspec.json.decode(self.body, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True

    @property
    def lacks_model(self) -> bool:
        """Whether the engine refused the request because it does not have the model. vLLM's code is the status."""
        return self.status == 404 and self._code in ("model_not_found", 404)

    @property
    def lost_engine(self) -> bool:
        """Whether the engine failed while it executed the request."""
        return self.status == 503 and self._code == "engine_failed"

    @property
    def _code(self) -> object:
        try:
            return msgspec.json.decode(self.body)["error"].get("code")
        except (msgspec.DecodeError, RecursionError, AttributeError, KeyError, TypeError):
            return None


class EngineGone(Exception):
    """The engine did not answer. `begun`: it may have received the request."""

    def __init__(self, reason: str, begun: bool) -> None:
        super().__init__(reason)
        self.begun = begun


class WorkedEngine(Protocol):
    async def call(self, method: str, path: str, body: bytes = b"", request_id: str = "") -> EngineReply:
        """The whole response. Raises `EngineGone`."""

    async def close(self) -> None: ...


class HttpEngine:
    """Created within the event loop that uses it."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def call(self, method: str, path: str, body: bytes = b"", request_id: str = "") -> EngineReply:
        headers = {"X-Request-Id": request_id} if request_id else {}
        try:
            async with self._session.request(
                method, self.url + path, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                return EngineReply(response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineGone(f"{self.url} is not reachable: {error}", begun=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise EngineGone(f"{self.url} did not complete its response ({reason})", begun=True) from error

    async def close(self) -> None:
        await self._session.close()


class AppEngine:
    """Direct calls into an ASGI application, without a connection."""

    def __init__(self, app: ASGIApp, url: str, key: str | None) -> None:
        self.app, self.url = app, url
        self._host = urlsplit(url).netloc.encode()
        self._headers = [(b"host", self._host), (b"content-type", b"application/json")]
        if key is not None:
            self._headers.append((b"authorization", f"Bearer {key}".encode()))

    async def call(self, method: str, path: str, body: bytes = b"", request_id: str = "") -> EngineReply:
        parts: list[bytes] = []
        status = 0
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            message = next(requests, None)
            if message is None:
                await asyncio.Event().wait()  # a caller of this process never disconnects
                raise AssertionError
            return message

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self.app(self._scope(method, path, body, request_id), receive, send)
        return EngineReply(status, b"".join(parts))

    async def close(self) -> None:
        """The application belongs to the server."""

    def _scope(self, method: str, path: str, body: bytes, request_id: str) -> Scope:
        headers = [*self._headers, (b"content-length", str(len(body)).encode())]
        if request_id:
            headers.append((b"x-request-id", request_id.encode()))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
