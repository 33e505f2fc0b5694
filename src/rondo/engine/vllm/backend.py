"""What both ways to ask vLLM have in common: its verbs, and what comes from it piece by piece."""

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
    """The next tokens of one sample. `versions` has one entry a token of the whole sample, once it has ended."""

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
    """One version of an adapter. vLLM knows each under a name of its own, and has `number`s for them."""

    name: str
    path: str
    number: int

    @property
    def inner_name(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True)
class VllmRequest:
    """A request on its way: `salt` keeps what was cached under other weights from being found."""

    request: GenerateRequest
    first: Request
    salt: str
    adapter: VllmAdapter | None

    @property
    def samples(self) -> int:
        """Those of a greedy request are all one, and vLLM refuses to make several."""
        return self.request.sampling.n if self.request.sampling.temperature > 0 else 1

    def common(self) -> dict[str, Any]:
        """What every request to vLLM's server says."""
        return {
            "model": self.adapter.inner_name if self.adapter else "base",
            "cache_salt": self.salt,
            "priority": self.request.priority,
        }

    def sampling(self) -> dict[str, Any]:
        """vLLM's own parameters. Ends are told by token: its tokenizer may know others than ours."""
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
            # One more than asked for: the sampled token takes a place, wherever it stands.
            chosen["logprobs"] = params.logprobs + 1 if params.logprobs else 0
        return chosen


def likeliest(ranked: Sequence[tuple[int, float, int | None]], count: int) -> list[tuple[int, float]]:
    """The `count` likeliest of (token, log-probability, rank)."""
    kept = sorted(
        (rank, token, logprob) for token, logprob, rank in ranked if rank is not None and rank <= count
    )
    return [(token, logprob) for _, token, logprob in kept[:count]]


def scores_of(asked: VllmRequest, said: Sequence[Sequence[tuple[int, float, int | None]]]) -> PromptLogprobs:
    """A prompt's log-probabilities: of each token its own, then those of the likeliest."""
    wanted = asked.request.sampling.prompt_logprobs or 0
    scores: PromptLogprobs = [None]
    for token, entries in zip(asked.request.prompt_ids[1:], said[1:], strict=True):
        own = next((token, logprob, rank or 0) for found, logprob, rank in entries if found == token)
        best = likeliest(entries, wanted)
        scores.append([own, *((each, logprob, place) for place, (each, logprob) in enumerate(best, 1))])
    return scores


def spread(spans: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
    """vLLM's spans of versions as one version a token."""
    if spans is None:
        return None
    return [number_of(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


def number_of(version: str) -> int:
    """vLLM calls what it started with "default"."""
    return int(version) if version.isdigit() else 0


class Backend(Protocol):
    """vLLM's verbs. Each raises a `RondoError` where vLLM refuses, or cannot be reached."""

    up: bool
    """Whether it can be asked now."""

    def stream(self, asked: VllmRequest) -> AsyncGenerator[OutputDelta, None]:
        """Leaving it early aborts the request."""

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self, level: int, mode: PauseMode) -> None: ...

    async def wake(self, tags: Sequence[str] | None) -> None: ...

    async def reset_prefix_cache(self) -> None: ...

    async def load_adapter(self, adapter: VllmAdapter) -> None: ...

    async def unload_adapter(self, adapter: VllmAdapter) -> None: ...

    async def transfer(self, path: str, version: int) -> None:
        """Every worker reads the folder, and tokens from then on are of `version`. Nothing is computed meanwhile."""

    def figures(self) -> Iterable[Metric]:
        """vLLM's own metrics, from any thread; none where it cannot be asked."""

    def stop(self) -> None: ...
