"""Input and output of an engine. Plain frozen data, free of torch, cheap to create in large numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rondo.base.errors import InvalidRequest
from rondo.client.limits import MAX_SAMPLES, RULES, fits
from rondo.client.structured import StructuredOutputsParams

PromptLogprobs = list[list[tuple[int, float, int]] | None]
"""For each token of a prompt (token, log-probability, rank): its own, and then the likeliest. None for the first."""
FinishReason = Literal["stop", "length", "abort"]
LogprobsMode = Literal["scaled", "raw"]
Pooling = Literal["last", "mean"]

COLDEST = 1e-5
"""Temperatures below this count as 0: dividing logits by less yields infinite values."""


def as_tuple(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Accepts one stop string, a list of them or None."""
    return (stop,) if isinstance(stop, str) else () if stop is None else tuple(stop)


def _ids(given: Any) -> tuple[int, ...]:
    """Converts a sequence or an array to plain integers."""
    if given is None:
        return ()
    return tuple(given.tolist() if hasattr(given, "tolist") else given)


LISTS: dict[str, Callable[[Any], tuple[Any, ...] | None]] = {
    "stop": as_tuple,
    "stop_token_ids": _ids,
    "bad_words": as_tuple,
    "bad_word_ids": lambda words: tuple(map(_ids, () if words is None else words)),
    "allowed_token_ids": lambda ids: None if ids is None else _ids(ids),
}
"""Fields that accept any sequence and are stored as tuples. None means an empty tuple, except for allowed tokens, where
it means all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of a request; names and defaults are vLLM's for equal features. Valid parameters cannot make
    a step fail, in any batch.

    `max_tokens=None` generates until the context is full. `temperature=0` is greedy. `top_k=0` and `-1` both mean
    "all". `logprobs=k` requests the log-probabilities of the sampled token and the k likeliest alternatives,
    `prompt_logprobs=k` the same for the prompt's tokens. `logprobs_mode` selects the distribution: "scaled" divides the
    logits by the temperature, before any top-k, top-p or min-p (as a learner recomputes it), "raw" is at temperature 1
    (as in the HTTP API).

    `bad_words` are excluded from the answer; `allowed_token_ids` exclude all other tokens. `best_of` samples are
    generated, and the `n` with the highest mean log-probability are returned. Only the last `truncate_prompt_tokens` of
    the prompt are used.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "scaled"
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    structured_outputs: StructuredOutputsParams | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of `bad_words`; an engine with a tokenizer sets them."""
    allowed_token_ids: tuple[int, ...] | None = None
    best_of: int | None = None
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    keep_special_tokens: tuple[int, ...] = ()
    """Special tokens that remain in the text: the markers of a reasoning or tool-call parser."""

    def __post_init__(self) -> None:
        for name, into in LISTS.items():
            given = getattr(self, name)
            if type(given) is not tuple or given:
                object.__setattr__(self, name, into(given))
        for name, default, holds, message in RULES:
            value = getattr(self, name)
            if value != default and not fits(holds, value):
                raise InvalidRequest(f"{name} {message}", param=name)
        if self.best_of is not None and not self.n <= self.best_of <= MAX_SAMPLES:
            raise InvalidRequest(f"best_of must be at least n, and at most {MAX_SAMPLES}", param="best_of")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens must not exceed max_tokens", param="min_tokens")
        if self.stop and not self.detokenize:
            raise InvalidRequest("stop needs detokenize=True: strings are matched in the text", param="stop")
        if self.top_k < 0:
            object.__setattr__(self, "top_k", 0)
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def edits_logits(self) -> bool:
        """Whether this request changes logits before sampling (and so leaves the batch's fast path)."""
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.min_tokens
            or self.bad_word_ids
            or self.allowed_token_ids is not None
        )

    def with_(self, **changes: object) -> SamplingParams:
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt as token ids. Lower `priority` numbers are served first. `adapter` is a name; None is the base model.
    With `pooling` the result is a vector of the prompt instead of an answer."""

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    adapter: str | None = None
    pooling: Pooling | None = None
    cache_salt: str | None = None
    """Only prefixes that were cached under the same salt are found."""
    whole: bool = False
    """Whether its reader has no use for a sample before its end; then it is not woken before, where no stop string has
    to be looked for."""

    @property
    def read_at_end(self) -> bool:
        return self.whole and not self.sampling.stop


@dataclass(slots=True)
class TokenChunk:
    """The next tokens of one sample of a request: the unit of streaming.

    `weight_versions` holds one entry a token. `top_logprobs`, when asked for, one list of (token,
    log-probability) a token, likeliest first. The chunk with a `finish_reason` is the sample's last. `vector` is all
    there is to a request for one.
    """

    request_id: str
    index: int
    token_ids: list[int]
    weight_versions: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """On a sample's first chunk, where they were asked for."""
    vector: list[float] | None = None

    def extend(self, other: TokenChunk) -> None:
        """Takes the tokens of the chunk that follows, so that a slow reader holds one chunk and not a
        queue."""
        self.token_ids += other.token_ids
        self.weight_versions += other.weight_versions
        if self.logprobs is not None and other.logprobs is not None:
            self.logprobs += other.logprobs
        if self.top_logprobs is not None and other.top_logprobs is not None:
            self.top_logprobs += other.top_logprobs
        self.text += other.text
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason


@dataclass(slots=True)
class CompletionOutput:
    """One finished sample."""

    index: int
    text: str
    token_ids: list[int]
    weight_versions: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A finished request: its prompt and its `n` samples."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
