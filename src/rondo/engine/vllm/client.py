"""HTTP client of vLLM: token ids in, tokens and log-probabilities out, and vLLM's errors as ours.

`generate` works with any client, so that RL uses it for a vLLM behind a URL; `VllmClient` and `AsyncVllmClient` are the
clients of a vLLM that is our child process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

import httpx
import numpy as np

from rondo.base.errors import RondoError, Unavailable
from rondo.client.answers import error_of
from rondo.client.http import AsyncClient, Client
from rondo.client.types import PromptLogprobs
from rondo.engine.vllm.backend import OutputDelta, VllmRequest, likeliest, scores_of, spread

GENERATE = "/inference/v1/generate"
CHILD_URL = "http://vllm"
NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


class _OfChild:
    """vLLM's server on a socket file that only this user can open: no key, no timeout, and our errors."""

    timeout: ClassVar[httpx.Timeout | None] = None

    def _operator(self) -> dict[str, str]:
        return {}

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return Unavailable(
                "vLLM ended and is being started again. Ask again in a while.", code="engine_restarting"
            )
        return Unavailable(
            "vLLM ended in the middle of this request; it is being started again. Ask again in a while.",
            code="engine_failed",
        )

    def _refused(self, answer: httpx.Response) -> RondoError:
        return refusal(answer.status_code, answer.content)


class VllmClient(_OfChild, Client):
    def __init__(self, socket: str) -> None:
        super().__init__(CHILD_URL, api_key="", transport=httpx.HTTPTransport(uds=socket))


class AsyncVllmClient(_OfChild, AsyncClient):
    def __init__(self, socket: str) -> None:
        transport = httpx.AsyncHTTPTransport(uds=socket, limits=NO_LIMITS)
        super().__init__(CHILD_URL, api_key="", transport=transport)

    async def vector(self, query: VllmRequest) -> OutputDelta:
        body = query.common() | {
            "input": list(query.request.prompt_ids),
            "task": "embed",
            "use_activation": False,
            "encoding_format": "bytes_only",
        }
        answer = await self._send("POST", "/pooling", json=body)
        return OutputDelta(0, (), vector=np.frombuffer(answer.content, dtype="<f4"), finish_reason="stop")

    async def prompt_logprobs(self, query: VllmRequest) -> OutputDelta:
        """Log-probabilities of a prompt. vLLM returns them only without streaming, so that a request for one token is
        sent first; its computed blocks stay cached."""
        params = {"max_tokens": 1, "temperature": 0, "detokenize": False}
        wanted = {"prompt_logprobs": query.request.sampling.prompt_logprobs}
        answer = await self._call("POST", GENERATE, generation(query, params | wanted))
        return OutputDelta(0, (), prompt_logprobs=prompt_logprobs(answer["prompt_logprobs"], query))


async def generate(
    client: AsyncClient, query: VllmRequest, model: str | None = None
) -> AsyncGenerator[OutputDelta, None]:
    """Streams the output pieces. `model` is the served name; the default is the name in our child process."""
    body = generation(query, query.sampling()) | {"stream_options": {"include_usage": True}}
    if model is not None:
        body["model"] = model
    async with aclosing(client.events(GENERATE, body)) as events:
        async for event in events:
            for piece in pieces(event, query):
                yield piece


def generation(query: VllmRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    return query.common() | {
        "token_ids": list(query.request.prompt_ids),
        "sampling_params": params,
    }


def prompt_logprobs(by_token: Sequence[Mapping[str, Any] | None], query: VllmRequest) -> PromptLogprobs:
    """Converts vLLM's prompt log-probabilities, which are keyed by token, to ours."""
    entries = [
        [(int(token), each["logprob"], each["rank"]) for token, each in (entry or {}).items()]
        for entry in by_token
    ]
    return scores_of(query, entries)


def refusal(status: int, data: bytes) -> RondoError:
    """The error for a refused request, in vLLM's words. An internal error of vLLM (5xx) is not the client's fault, and
    vLLM continues to serve."""
    try:
        by_token = json.loads(data)
        details = by_token.get("error", by_token)
    except (ValueError, AttributeError):
        details = data.decode("utf-8", "replace")[:500]
    if status >= 500:
        message = details.get("message", "") if isinstance(details, dict) else details
        return RondoError(f"vLLM could not do it: {worker_error(str(message))}", code="vllm_error")
    return error_of(status, details)


def worker_error(message: str) -> str:
    """The worker's own message, without the text that intermediate processes added."""
    _, _, rest = message.partition("Worker failed with error '")
    return rest.rpartition("', please check")[0] or message


def pieces(event: Mapping[str, Any], query: VllmRequest) -> list[OutputDelta]:
    """Output pieces of one stream event."""
    params = query.request.sampling
    usage = event.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    found = []
    for choice in event["choices"]:
        logprobs = top = None
        if params.logprobs is not None:
            content = (choice.get("logprobs") or {}).get("content") or []
            logprobs = [entry["logprob"] for entry in content]
            top = [
                likeliest(
                    [(each["token_id"], each["logprob"], each["rank"]) for each in entry["top_logprobs"]],
                    params.logprobs,
                )
                for entry in content
            ]
        found.append(
            OutputDelta(
                index=choice["index"],
                tokens=choice["token_ids"] or (),
                logprobs=logprobs,
                top=top,
                finish_reason=choice["finish_reason"],
                stop_reason=choice["stop_reason"],
                versions=spread(choice["weight_versions"]),
            )
        )
    if cached is not None and not found:
        found.append(OutputDelta(index=0, tokens=(), cached=cached))
    return found
