"""HTTP connections to engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import aiohttp

from rondo.gateway.config import GatewayConfig

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
"""Request headers that are not passed on: those of the connection, the client's key, and the request id, which the
gateway sets."""
ANSWERED = HOP_BY_HOP | {b"x-request-id", b"server", b"date", b"content-length"}
"""Response headers that are not passed on, or that the gateway sets."""
IDLE_SECONDS = 30.0
"""Below the engine servers' own limit, so that a connection is not closed while a request is sent on it."""
CHECK_SECONDS = 5.0


class Upstream:
    """Created within the event loop that uses it."""

    def __init__(self, config: GatewayConfig) -> None:
        self._key = config.engine_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=10),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=config.connect_seconds, sock_read=config.stall_seconds
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def post(
        self, url: str, body: bytes, headers: Iterable[tuple[bytes, bytes]], request_id: str
    ) -> aiohttp.ClientResponse:
        """The response, whose body has not been read yet."""
        sent = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in OWN
        ]
        sent.append(("X-Request-Id", request_id))
        if self._key is not None:
            sent.append(("Authorization", f"Bearer {self._key}"))
        return await self._session.post(url, data=body, headers=sent, allow_redirects=False)

    async def get_json(self, url: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=CHECK_SECONDS)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key is not None else {}
        async with self._session.get(
            url, headers=headers, timeout=timeout, raise_for_status=True
        ) as response:
            return await response.json(content_type=None)

    async def get(self, *urls: str) -> int:
        """Status of the first of the URLs that exists."""
        status = 404
        for url in urls:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=CHECK_SECONDS)) as response:
                status = response.status
            if status != 404:
                break
        return status

    async def close(self) -> None:
        await self._session.close()


def passed_on(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Headers of the engine's response for the client."""
    return [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in ANSWERED]
