"""Wire format of vLLM's server: requests, responses and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.base.errors import RondoError
from rondo.client.answers import error_of
from rondo.client.types import PromptLogprobs
from rondo.engine.vllm.backend import OutputDelta, VllmRequest, likeliest, scores_of, spread


def generation(asked: VllmRequest, params: Mapping[str, Any]) -> dict[str, Any]:
    return asked.common() | {"token_ids": list(asked.request.prompt_ids), "sampling_params": params}


def prompt_logprobs(said: Sequence[Mapping[str, Any] | None], asked: VllmRequest) -> PromptLogprobs:
    """Converts vLLM's prompt log-probabilities, which are keyed by token, to ours."""
    entries = [
        [(int(token), each["logprob"], each["rank"]) for token, each in (entry or {}).items()]
        for entry in said
    ]
    return scores_of(asked, entries)


def refusal(status: int, data: bytes) -> RondoError:
    """The error for a refused request, in vLLM's words. An internal error of vLLM (5xx) is not the client's fault, and
    vLLM continues to serve."""
    try:
        said = json.loads(data)
        details = said.get("error", said)
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


def pieces(event: Mapping[str, Any], asked: VllmRequest) -> list[OutputDelta]:
    """Output pieces of one stream event."""
    params = asked.request.sampling
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
