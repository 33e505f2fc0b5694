"""Client of a judge model behind any OpenAI endpoint, with retries, limits and cost accounting."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx

from rondo.base.errors import ConfigError, RondoError, Unavailable
from rondo.base.telemetry.metrics import counter
from rondo.client.answers import checked
from rondo.client.http import DEFAULT_URL
from rondo.graders.guarded import waiting

_tokens = counter("judge_tokens", "Prompt and completion tokens of judges.", ("model", "kind"))
_asked = counter("judge_requests", "Requests to judges by outcome.", ("model", "outcome"))
_money = counter("judge_cost", "Cost of judges, in the unit of the configured prices.", ("model",))

WORTH_ANOTHER_TRY = (408, 409, 429)
"""Retried HTTP statuses, in addition to 500 and above."""
Post = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
own_models: ContextVar[Post | None] = ContextVar("own_models", default=None)
"""Function that sends a path and a body to the models of this process, for endpoints without a `base_url`."""


@dataclass(frozen=True)
class Endpoint:
    base_url: str = ""
    """URL with or without `/v1`; default: RONDO_BASE_URL, else the gateway on port 8000 of this machine."""
    key_env: str = "RONDO_API_KEY"
    """Environment variable with the key: keys do not belong in a grader's JSON."""
    timeout_s: float = 60.0
    """Limit per request in seconds."""
    retries: int = 3
    backoff_s: float = 0.5
    """Delay in seconds before the first retry; it doubles with each further retry."""
    concurrency: int = 16
    """Maximum number of concurrent requests."""
    prices: tuple[float, float] = (0.0, 0.0)
    """Price per million prompt tokens and per million completion tokens."""
    _here: _Here = field(default_factory=lambda: _Here(), repr=False, compare=False)

    def __post_init__(self) -> None:
        above = {"timeout_s": self.timeout_s, "concurrency": self.concurrency}
        least = {"retries": self.retries, "backoff_s": self.backoff_s, "prices": min(self.prices)}
        for name, value in above.items():
            if not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0.", param=name)
        for name, value in least.items():
            if not value >= 0:
                raise ConfigError(f"{name} is {value}; it must be at least 0.", param=name)

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.post("/v1/chat/completions", body)

    async def embed(self, model: str, texts: list[str]) -> list[list[float]]:
        answer = await self.post("/v1/embeddings", {"model": model, "input": texts})
        try:
            vectors = [each["embedding"] for each in sorted(answer["data"], key=lambda each: each["index"])]
            read = [[float(value) for value in vector] for vector in vectors]
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{self._url()} gave no embeddings: {error!r}.") from error
        if len(read) != len(texts) or len({len(vector) for vector in read}) != 1:
            raise Unavailable(f"{self._url()} gave {len(read)} embeddings for {len(texts)} texts.")
        return read

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises a permanent refusal as its `RondoError`, and a time-out of the last attempt as `TimeoutError`."""
        async with AsyncExitStack() as held:
            http, slots = self._here.of(self)
            async with waiting():
                await held.enter_async_context(slots)
            for attempt in range(self.retries + 1):
                try:
                    answer = await self._once(http, path, body)
                except (RondoError, TimeoutError, httpx.HTTPError) as error:
                    _asked.labels(
                        str(body["model"]), "timeout" if isinstance(error, TimeoutError) else "error"
                    ).inc()
                    if attempt == self.retries or not _passing(error):
                        raise _told(error, self._url()) from error
                    await asyncio.sleep(self.backoff_s * 2**attempt * random.uniform(0.5, 1.0))
                else:
                    self._account(str(body["model"]), answer)
                    return answer
        raise AssertionError("unreachable")

    async def _once(self, http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        post = None if self.base_url else own_models.get()
        async with asyncio.timeout(self.timeout_s):
            if post is not None:
                return await post(path, body)
            return checked(await http.post(self._url() + path, json=body, headers=self._headers()))

    def _account(self, model: str, answer: Mapping[str, Any]) -> None:
        _asked.labels(model, "ok").inc()
        read, written = used(answer)
        _tokens.labels(model, "read").inc(read)
        _tokens.labels(model, "written").inc(written)
        _money.labels(model).inc((read * self.prices[0] + written * self.prices[1]) / 1e6)

    def _url(self) -> str:
        url = self.base_url or os.environ.get("RONDO_BASE_URL") or DEFAULT_URL
        return url.rstrip("/").removesuffix("/v1")

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}


def used(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens, if the response contains usage."""
    usage = answer.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    read, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return (read if isinstance(read, int) else 0, written if isinstance(written, int) else 0)


class _Here:
    """Connections and slots of one event loop. A caller may use a new loop for each step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now: tuple[httpx.AsyncClient, asyncio.Semaphore] | None = None

    def of(self, endpoint: Endpoint) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._now is None or self._loop is not loop:
            # Without keep-alive, connections need no cleanup at the end of the loop. Time limits are applied by this
            # client.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._loop = loop
            self._now = (
                httpx.AsyncClient(limits=limits, timeout=None),
                asyncio.Semaphore(endpoint.concurrency),
            )
        return self._now


def _passing(error: Exception) -> bool:
    """Whether a retry may succeed."""
    return not isinstance(error, RondoError) or error.status >= 500 or error.status in WORTH_ANOTHER_TRY


def _told(error: Exception, url: str) -> Exception:
    if isinstance(error, TimeoutError):
        return TimeoutError(f"{url} did not answer in time")
    if isinstance(error, httpx.HTTPError):
        return Unavailable(f"no answer from {url} ({error or type(error).__name__}). Is it running?")
    return error
