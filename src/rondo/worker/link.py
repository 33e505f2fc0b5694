"""The gateway as a worker reaches it. Calls are repeated with back-off while the gateway is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

import aiohttp
import msgspec

from rondo.base.telemetry.log import get_logger
from rondo.worker.wire import (
    FinishCall,
    FinishedItem,
    FinishReply,
    HeldCall,
    HeldReply,
    LeaseCall,
    LeaseReply,
)

log = get_logger("rondo.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to reach the gateway."""
CALL_SECONDS = 30.0
AT_A_TIME = 1000
BATCH_BYTES = 4 << 20
"""Size of a batch of results, unless one result is larger."""
Reply = TypeVar("Reply")


class GatewayRefused(Exception):
    """The gateway refused a call, so that a repetition would not help."""


class GatewayLink:
    """Created within the event loop that uses it."""

    def __init__(self, url: str, key: str | None, worker: str, verify_tls: bool = True) -> None:
        self.url, self.worker = url.rstrip("/").removesuffix("/v1"), worker
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=8, keepalive_timeout=30.0, ssl=verify_tls),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._away = False

    async def lease(self, models: Sequence[str], limit: int, wait: float, held: int) -> LeaseReply:
        body = LeaseCall(self.worker, list(models), limit, wait, held)
        return await self._call("leases", body, LeaseReply, wait + CALL_SECONDS)

    async def beat(self, held: Sequence[tuple[str, str]]) -> list[str]:
        """Ids that the worker no longer holds."""
        lost: list[str] = []
        for place in range(0, len(held), AT_A_TIME):
            body = HeldCall(self.worker, list(held[place : place + AT_A_TIME]))
            lost += (await self._call("heartbeat", body, HeldReply)).lost
        return lost

    async def finish(self, results: Sequence[FinishedItem]) -> None:
        """Returns when the results are durable."""
        for batch in _batches(results):
            await self._call("finish", FinishCall(self.worker, batch), FinishReply)

    async def release(self, held: Sequence[tuple[str, str]] | None = None) -> None:
        """Hands requests back; without a list, everything that the worker holds."""
        body = HeldCall(self.worker, None if held is None else list(held))
        await self._call("release", body, HeldReply)

    async def close(self) -> None:
        await self._session.close()

    async def _call(
        self, route: str, body: msgspec.Struct, reply: type[Reply], seconds: float = CALL_SECONDS
    ) -> Reply:
        data = msgspec.json.encode(body)
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await self._once(route, data, seconds)
                if self._away:
                    log.info("the gateway is back", extra={"gateway": self.url})
                self._away = False
                return msgspec.json.decode(answer, type=reply)
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
                if not self._away:
                    reason = f"{type(error).__name__}: {error}"[:300]
                    log.warning(
                        "the gateway is away: trying again", extra={"gateway": self.url, "error": reason}
                    )
                self._away = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self, route: str, data: bytes, seconds: float) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=5.0)
        async with self._session.post(
            f"{self.url}/v1/queue/{route}", data=data, timeout=timeout, allow_redirects=False
        ) as response:
            answer = await response.read()
        if response.status == 200:
            return answer
        shown = answer.decode(errors="replace")[:300]
        if response.status in (400, 404, 413, 422):
            raise GatewayRefused(f"{route}: {response.status} {shown}")
        # Also 401 and 403: the key may be valid soon, and leases must not be lost meanwhile.
        raise OSError(f"{response.status} {shown}")


def _batches(results: Sequence[FinishedItem]) -> Iterator[list[FinishedItem]]:
    batch: list[FinishedItem] = []
    size = 0
    for each in results:
        length = len(bytes(each.result))
        if batch and (size + length > BATCH_BYTES or len(batch) == AT_A_TIME):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += length
    if batch:
        yield batch
