"""HTTP clients of remote engines: `rondo serve` and vLLM."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

import httpx

from rondo.base.errors import ConfigError, InvalidRequest, RondoError, Unavailable
from rondo.client.engine import RunningRequests
from rondo.client.http import AsyncClient
from rondo.engine.vllm.backend import OutputDelta, VllmRequest, likeliest, number_of
from rondo.engine.vllm.client import NO_LIMITS, generate

FIELD = "rl.engine.url"
ADMIN_KEY = "RONDO_ADMIN_KEY"
NO_KEY = "none"
"""A placeholder for vLLM's endpoints, which accept any key."""
BY_ID = "token_id:"
"""Prefix of token names in log-probabilities; token IDs are unambiguous, in contrast to token texts."""


class EngineClient(AsyncClient):
    """HTTP client of an engine's server. Keys are read from RONDO_API_KEY and RONDO_ADMIN_KEY."""

    def __init__(self, url: str) -> None:
        key = os.environ.get(ADMIN_KEY) or NO_KEY
        super().__init__(url, transport=httpx.AsyncHTTPTransport(limits=NO_LIMITS), admin_key=key)

    async def card(self) -> dict[str, Any]:
        """Model card of the base model."""
        cards = (await self.model_cards())["data"]
        if not cards:
            raise ConfigError(f"the engine at {self.base_url} has no model.", param=FIELD)
        found: dict[str, Any] = cards[0]
        return found


class ServerApi(Protocol):
    client: EngineClient
    model: str
    """Name of the policy on the server."""
    max_model_len: int

    def generate(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        """Generate samples; closing the generator early aborts the request."""

    async def check(self, requests: RunningRequests = "retain") -> None:
        """Raise ConfigError with the correct start command if the server does not support weight updates, or not with
        this treatment of running requests."""

    async def version(self) -> int:
        """Version of the server's weights."""

    async def push(
        self,
        place: Mapping[str, Any],
        version: int,
        waits: bool,
        requests: RunningRequests = "retain",
        permitted: Callable[[], None] = lambda: None,
    ) -> None:
        """Push weights from `place`, an `update_info` without its version. `waits`: running requests end first.
        `permitted` raises an error if the version must not be served after all. An unfinished update of an earlier
        trainer is aborted."""


class _Server:
    def __init__(self, client: EngineClient, card: Mapping[str, Any]) -> None:
        """`card` is the card of the served model."""
        self.client, self.model, self.max_model_len = client, str(card["id"]), int(card["max_model_len"])


class RondoServer(_Server):
    """`rondo serve` with any backend."""

    async def check(self, requests: RunningRequests = "retain") -> None:
        if not os.environ.get(ADMIN_KEY):
            raise ConfigError(
                f"weight updates need the admin key of the engine at {self.client.base_url}: set {ADMIN_KEY} to the "
                "value of its --server.admin_key",
                param=FIELD,
            )
        await self.version()

    async def version(self) -> int:
        return int((await self.client.weight_info())["weight_version"])

    async def push(
        self,
        place: Mapping[str, Any],
        version: int,
        waits: bool,
        requests: RunningRequests = "retain",
        permitted: Callable[[], None] = lambda: None,
    ) -> None:
        await self.start()
        try:
            await self.fetch(place, version)
            await asyncio.to_thread(permitted)
            await self.switch(version, waits, requests)
        except BaseException:
            await self.abort()
            raise

    async def start(self) -> None:
        await self.client.abort_weight_update()
        await self.client.start_weight_update()

    async def fetch(self, place: Mapping[str, Any], version: int) -> None:
        """Bring a version to the server, which serves the version in use meanwhile."""
        await self.client.update_weights({**place, "version": version})

    async def switch(self, version: int, waits: bool, requests: RunningRequests) -> None:
        """Switch to the fetched version."""
        try:
            if waits:
                await self.client.pause("wait")
            await self.client.finish_weight_update(str(version), requests)
        finally:
            await _resume(self.client)

    async def abort(self) -> None:
        with suppress(RondoError):
            await self.client.abort_weight_update()
        await _resume(self.client)

    async def generate(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        body = {name: value for name, value in query.sampling().items() if name != "detokenize"}
        body |= {
            "model": self.model,
            "prompt": list(query.request.prompt_ids),
            "priority": query.request.priority,
            "logprobs_mode": query.request.sampling.logprobs_mode,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream_options": {
                "include_usage": True,
                "continuous_usage_stats": True,
                "whole_samples": query.request.read_at_end,
            },
        }
        async with aclosing(self.client.events("/v1/completions", body)) as events:
            async for event in events:
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
                for choice in event["choices"]:
                    yield _output_delta(choice, query.request.sampling.logprobs, cached)


class VllmServer(_Server):
    """`vllm serve` with Rondo's weight plug-in. Its log-probabilities are computed before the temperature."""

    async def check(self, requests: RunningRequests = "retain") -> None:
        if requests == "recompute":
            raise ConfigError(
                f"the vLLM at {self.client.base_url} does not compute the KV cache of running requests again: set "
                "rl.engine.weights.requests to retain or abort.",
                param="rl.engine.weights.requests",
            )
        try:
            await self.version()
            await self.client.init_weight_transfer_engine()
        except Unavailable:
            raise
        except RondoError as error:
            raise ConfigError(
                f"the vLLM at {self.client.base_url} takes no weights from a folder ({error.message}). Start it where "
                f"Rondo is installed too: {VLLM_COMMAND}",
                param=FIELD,
            ) from error

    async def version(self) -> int:
        return number_of(str((await self.client.weight_info())["weight_version"]))

    async def push(
        self,
        place: Mapping[str, Any],
        version: int,
        waits: bool,
        requests: RunningRequests = "retain",
        permitted: Callable[[], None] = lambda: None,
    ) -> None:
        await asyncio.to_thread(permitted)
        await self.client.pause("wait" if waits else "abort" if requests == "abort" else "keep")
        try:
            await self.client.send_weights(place, version)
        finally:
            await _resume(self.client)

    async def generate(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        sampling = query.request.sampling
        if sampling.logprobs is not None and sampling.logprobs_mode == "scaled" and sampling.temperature != 1:
            raise InvalidRequest(
                "vLLM gives log-probabilities before the temperature: set rl.temperature to 1, or take `rondo serve`.",
                param="rl.temperature",
            )
        async with aclosing(generate(self.client, query, self.model)) as pieces:
            async for piece in pieces:
                yield piece


VLLM_COMMAND = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out "
    """--weight-transfer-config '{"backend": "rondo"}'"""
)
"""Command that starts vLLM with all required endpoints."""


async def detect_server(url: str) -> ServerApi:
    """Connect to a URL and detect the kind of server."""
    client = EngineClient(url)
    try:
        about, card = await client.server_version(), await client.card()
    except Unavailable as error:
        await client.close()
        raise ConfigError(
            f"{error.message.removesuffix(' Is the server running?')} Start the engine first: `rondo serve MODEL "
            f"--server.admin_key=KEY`, or {VLLM_COMMAND}",
            param=FIELD,
        ) from error
    except BaseException:
        await client.close()
        raise
    return (RondoServer if "weight_version" in about else VllmServer)(client, card)


async def _resume(client: EngineClient) -> None:
    """Resume the server, unless it has ended."""
    with suppress(Unavailable):
        await client.resume()


def _output_delta(choice: Mapping[str, Any], count: int | None, cached: int) -> OutputDelta:
    """Parse a completion choice; `count` is the number of requested top log-probabilities."""
    logprobs = choice["logprobs"]
    top = None
    if logprobs is not None and count:
        top = [_likeliest(each, count) for each in logprobs["top_logprobs"]]
    return OutputDelta(
        index=choice["index"],
        tokens=choice["token_ids"],
        logprobs=None if logprobs is None else logprobs["token_logprobs"],
        top=top,
        finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
        versions=choice["weight_versions"],
        cached=cached,
    )


def _likeliest(logprobs: Mapping[str, float], count: int) -> list[tuple[int, float]]:
    ranked: Sequence[tuple[str, float]] = sorted(logprobs.items(), key=lambda each: -each[1])
    found = [(int(name.removeprefix(BY_ID)), logprob, rank) for rank, (name, logprob) in enumerate(ranked, 1)]
    return likeliest(found, count)
