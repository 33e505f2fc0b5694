"""What goes into an engine and what comes out. Plain frozen data, no torch, cheap to make by the thousand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rondo.base.errors import InvalidRequest
from rondo.client.structured import StructuredOutputsParams

PromptLogprobs = list[list[tuple[int, float, int]] | None]
"""For each token of a prompt (token, log-probability, rank): its own, and then the likeliest. None for the first."""
FinishReason = Literal["stop", "length", "abort"]
LogprobsMode = Literal["scaled", "raw"]
Pooling = Literal["last", "mean"]

MAX_LOGPROBS = 100
MAX_STOP = 16
MAX_BAD_WORDS = 1024
MAX_BAD_CHARACTERS = 64 * 1024
"""Of all of them together: whoever takes the request tokenizes them at once."""
MOST_TOKENS = 2**63 - 1
"""Far more than fit; but a number of hundreds of digits could not be counted, which is done in floats."""
COLDEST = 1e-5
"""A temperature below this is 0: logits divided by less are not finite any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to continue a prompt; names and defaults are vLLM's where the thing is the same. What it lets through
    cannot make a step fail, whatever else is in the batch.

    `max_tokens=None` generates until the context is full. `temperature=0` is greedy. `top_k=0` and `-1` both
    mean "all". `logprobs=k` asks for the sampled token's log-probability and the k likeliest alternatives,
    `prompt_logprobs=k` for those of the prompt's tokens.
    `logprobs_mode` says of which distribution: "scaled" is that of the logits divided by the temperature,
    before any top-k, top-p or min-p (what a learner recomputes), "raw" is at temperature 1 (what the HTTP API
    reports).

    `bad_words` do not come up in the answer, `allowed_token_ids` are all that do. `best_of` samples are made, and the
    `n` whose tokens are likeliest on average are given. Of the prompt only the last `truncate_prompt_tokens` count.
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
    """As tokens; an engine with a tokenizer fills it in."""
    allowed_token_ids: tuple[int, ...] | None = None
    best_of: int | None = None
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    keep_special_tokens: tuple[int, ...] = ()
    """Those that the text has all the same: the markers that whoever parses it looks for."""

    def __post_init__(self) -> None:
        stop = as_tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "bad_words", as_tuple(self.bad_words))
        object.__setattr__(self, "bad_word_ids", tuple(map(tuple, self.bad_word_ids)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
            _require(bool(self.allowed_token_ids), "allowed_token_ids", "must not be empty")
        _require(len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", f"takes at most {MAX_BAD_WORDS} words")
        _require(all(map(str.strip, self.bad_words)), "bad_words", "must not hold an empty word")
        _require(
            sum(map(len, self.bad_words)) <= MAX_BAD_CHARACTERS,
            "bad_words",
            f"takes at most {MAX_BAD_CHARACTERS} characters in all",
        )
        _require(self.top_k >= -1, "top_k", "must be at least 1; 0 and -1 mean all")
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        _require(
            self.best_of is None or self.n <= self.best_of <= 1024,
            "best_of",
            "must be at least n, and at most 1024",
        )
        _require(
            self.truncate_prompt_tokens in (None, -1) or (self.truncate_prompt_tokens or 0) >= 1,
            "truncate_prompt_tokens",
            "must be at least 1, or -1 for as many as fit",
        )
        _require(
            self.max_tokens is None or 1 <= self.max_tokens <= MOST_TOKENS,
            "max_tokens",
            f"must be between 1 and {MOST_TOKENS}",
        )
        _require(self.min_tokens >= 0, "min_tokens", "must not be negative")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            "must not exceed max_tokens",
        )
        _require(0 <= self.temperature <= 100, "temperature", "must be between 0 and 100")
        if self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        _require(0 < self.top_p <= 1, "top_p", "must be in (0, 1]")
        _require(0 <= self.min_p <= 1, "min_p", "must be in [0, 1]")
        _require(1 <= self.n <= 1024, "n", "must be between 1 and 1024")
        _require(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            "logprobs",
            f"must be between 0 and {MAX_LOGPROBS}",
        )
        _require(
            self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= MAX_LOGPROBS,
            "prompt_logprobs",
            f"must be between 0 and {MAX_LOGPROBS}",
        )
        _require(self.logprobs_mode in ("scaled", "raw"), "logprobs_mode", "must be 'scaled' or 'raw'")
        _require(-2 <= self.presence_penalty <= 2, "presence_penalty", "must be between -2 and 2")
        _require(-2 <= self.frequency_penalty <= 2, "frequency_penalty", "must be between -2 and 2")
        _require(0.01 <= self.repetition_penalty <= 10, "repetition_penalty", "must be between 0.01 and 10")
        _require(
            all(-100 <= bias <= 100 for bias in self.logit_bias.values()),
            "logit_bias",
            "must hold numbers between -100 and 100",
        )
        _require(len(stop) <= MAX_STOP, "stop", f"takes at most {MAX_STOP} strings")
        _require(all(stop), "stop", "must not hold an empty string")
        _require(
            not stop or self.detokenize, "stop", "needs detokenize=True: strings are matched in the text"
        )

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


def as_tuple(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """People write one stop string, a list of them or nothing."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _require(ok: bool, param: str, message: str) -> None:
    if not ok:
        raise InvalidRequest(f"{param} {message}", param=param)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt, already token ids. A lower `priority` goes first. `adapter` is a name; None is the base alone. With
    `pooling` it wants no answer but a vector of the prompt."""

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    adapter: str | None = None
    pooling: Pooling | None = None


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
