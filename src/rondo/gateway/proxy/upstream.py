"""HTTP connections to engines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

from rondo.gateway.config import GatewayConfig
from rondo.gateway.proxy.connection import EngineResponse, Header
from rondo.gateway.proxy.pool import IDLE_SECONDS, EngineConnections

HOP_BY_HOP = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)
OWN = HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"content-length",
    b"accept-encoding",
    b"expect",
    b"x-admin-key",
    b"x-request-id",
}
"""Request headers to drop: those of the connection, the client's key, and the request id, which the
gateway sets."""
ANSWERED = HOP_BY_HOP | {b"x-request-id", b"server", b"date", b"content-length"}
"""Response headers to drop, or that the gateway sets."""
INVALID = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header value has."""
USUAL = frozenset([b"keep-alive", b"close"])
"""Values of the header `Connection` that name no other header."""
CHECK_SECONDS = 5.0
LARGEST_REPORT = 4 << 20
"""Bytes of an engine's list of models or of its load."""


class Upstream:
    """Created within the event loop that uses it."""

    def __init__(self, config: GatewayConfig) -> None:
        self._key = None if config.engine_key is None else f"Bearer {config.engine_key}"
        self._requests = EngineConnections(config.connect_seconds, config.stall_seconds)
        self._checks = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=config.connect_seconds, sock_read=config.stall_seconds
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        """Checks do not wait until the connections of model requests are opened."""

    async def post(
        self, url: str, path: str, body: bytes, headers: Iterable[Header], request_id: str
    ) -> EngineResponse:
        """The response, whose body has not been read yet."""
        sent = _sent(headers)
        sent.append((b"x-request-id", request_id.encode("ascii")))
        if self._key is not None:
            sent.append((b"authorization", self._key.encode()))
        return await self._requests.post(url, path, sent, body)

    def forget(self, url: str) -> None:
        self._requests.forget(url)

    async def get_json(self, url: str, wait: float = 0) -> Any:
        """`wait`: seconds that the engine may wait before it answers."""
        return msgspec.json.decode(await self.get_bytes(url, wait))

    async def get_bytes(self, url: str, wait: float = 0) -> bytes:
        """A report of limited size."""
        timeout = aiohttp.ClientTimeout(total=wait + CHECK_SECONDS)
        headers = {"Authorization": self._key} if self._key is not None else {}
        async with self._checks.get(url, headers=headers, timeout=timeout, raise_for_status=True) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > LARGEST_REPORT:
                    raise ValueError(f"{url} returned more than {LARGEST_REPORT} bytes")
            return b"".join(parts)

    async def call(
        self, url: str, key: str, body: Any = None, seconds: float | None = CHECK_SECONDS
    ) -> tuple[int, Any]:
        """Status and JSON of a call with another key than that of the engines."""
        async with self._checks.request(
            "GET" if body is None else "POST",
            url,
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as response:
            return response.status, await response.json(content_type=None)

    async def administer(self, url: str, key: str, body: Any, seconds: float) -> tuple[int, str]:
        """Status and text of a call to an engine's admin route."""
        headers = {"Authorization": f"Bearer {key}", "X-Admin-Key": key}
        limit = aiohttp.ClientTimeout(total=seconds)
        async with self._checks.post(url, json=body, headers=headers, timeout=limit) as response:
            return response.status, await response.text()

    async def get(self, *urls: str) -> int:
        """Status of the first of the URLs that exists."""
        status = 404
        for url in urls:
            async with self._checks.get(url, timeout=aiohttp.ClientTimeout(total=CHECK_SECONDS)) as response:
                status = response.status
            if status != 404:
                break
        return status

    async def close(self) -> None:
        await self._requests.close()
        await self._checks.close()


def _sent(headers: Iterable[Header]) -> list[Header]:
    """Request headers for the engine."""
    sent = [header for header in headers if header[0] not in OWN]
    if named := [value for name, value in headers if name == b"connection" and value.lower() not in USUAL]:
        dropped = {part.strip().lower() for value in named for part in value.split(b",")}
        sent = [header for header in sent if header[0] not in dropped]
    return sent


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """Headers of the engine's response for the client. The parser accepts control characters, uvicorn does not."""
    return [header for header in headers if header[0] not in ANSWERED and not INVALID.search(header[1])]
