"""Interface shared by both modes of vLLM: its operations and its output pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import Metric

from rondo.client.engine import PauseMode
from rondo.client.types import GenerateRequest, PromptLogprobs
from rondo.engine.schedule.request import Request


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The next tokens of one sample. `versions` has one entry per token of the whole sample, once it has ended."""

    index: int
    tokens: Sequence[int]
    logprobs: Sequence[float] | None = None
    top: Sequence[list[tuple[int, float]]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    versions: list[int] | None = None
    cached: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    vector: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class VllmAdapter:
    """One version of an adapter. Each has its own name (`inner_name`) and `number` in vLLM."""

    name: str
    path: str
    number: int

    @property
    def inner_name(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class VllmRequest:
    """A request to vLLM; `salt` prevents prefix-cache hits on blocks computed with other weights."""

    request: GenerateRequest
    first: Request
    salt: str
    adapter: VllmAdapter | None

    @property
    def samples(self) -> int:
        """Number of samples to request. The samples of a greedy request are identical, and vLLM
        refuses n > 1 for it."""
        return self.request.sampling.n if self.request.sampling.temperature > 0 else 1

    def common(self) -> dict[str, Any]:
        """Fields of every request to vLLM's server."""
        return {
            "model": self.adapter.inner_name if self.adapter else "base",
            "cache_salt": self.salt,
            "priority": self.request.priority,
        }

    def sampling(self) -> dict[str, Any]:
        """vLLM's sampling parameters. The end is specified by token id, because its tokenizer may have other end tokens
        than ours."""
        params = self.request.sampling
        chosen: dict[str, Any] = {
            "n": self.samples,
            "max_tokens": self.first.max_length - self.first.prompt_length,
            "min_tokens": params.min_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": params.seed,
            "stop_token_ids": sorted(self.first.stop_ids),
            "ignore_eos": True,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "detokenize": False,
        }
        if params.allowed_token_ids is not None:
            chosen["allowed_token_ids"] = list(params.allowed_token_ids)
        if params.bad_words:
            chosen["bad_words"] = list(params.bad_words)
        form = params.structured_outputs
        if form is not None:
            chosen["structured_outputs"] = {
                form.kind: getattr(form, form.kind),
                "disable_any_whitespace": form.disable_any_whitespace,
                "whitespace_pattern": form.whitespace_pattern,
            }
        if params.logit_bias:
            chosen["logit_bias"] = dict(params.logit_bias)
        if params.logprobs is not None:
            # One more than requested: the sampled token occupies an entry, whatever its rank.
            chosen["logprobs"] = params.logprobs + 1 if params.logprobs else 0
        return chosen


def likeliest(ranked: Sequence[tuple[int, float, int | None]], count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens of (token, log-probability, rank) entries."""
    kept = sorted(
        (rank, token, logprob) for token, logprob, rank in ranked if rank is not None and rank <= count
    )
    return [(token, logprob) for _, token, logprob in kept[:count]]


def scores_of(
    query: VllmRequest, by_token: Sequence[Sequence[tuple[int, float, int | None]]]
) -> PromptLogprobs:
    """Log-probabilities of a prompt: for each token its own, followed by the likeliest."""
    wanted = query.request.sampling.prompt_logprobs or 0
    scores: PromptLogprobs = [None]
    for token, entries in zip(query.request.prompt_ids[1:], by_token[1:], strict=True):
        own = next((token, logprob, rank or 0) for found, logprob, rank in entries if found == token)
        best = likeliest(entries, wanted)
        scores.append([own, *((each, logprob, place) for place, (each, logprob) in enumerate(best, 1))])
    return scores


def spread(spans: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
    """Expands vLLM's spans of versions to one version per token."""
    if spans is None:
        return None
    return [number_of(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


def number_of(version: str) -> int:
    """Version number of a vLLM version name; the initial weights are named "default"."""
    return int(version) if version.isdigit() else 0


class Backend(Protocol):
    """vLLM's operations. Each raises a `RondoError` if vLLM refuses it or cannot be reached."""

    up: bool
    """Whether vLLM accepts requests now."""

    def stream(self, query: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        """Streams the output pieces. Leaving the iterator early aborts the request."""

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self, level: int, mode: PauseMode) -> None: ...

    async def wake(self, tags: Sequence[str] | None) -> None: ...

    async def reset_prefix_cache(self) -> None: ...

    async def load_adapter(self, adapter: VllmAdapter) -> None: ...

    async def unload_adapter(self, adapter: VllmAdapter) -> None: ...

    async def transfer(self, path: str, version: int) -> None:
        """Every worker reads the folder, and later tokens are of `version`. No step runs meanwhile."""

    def figures(self) -> Iterable[Metric]:
        """vLLM's own metrics, readable from any thread; empty if vLLM cannot be reached."""

    def stop(self) -> None: ...
