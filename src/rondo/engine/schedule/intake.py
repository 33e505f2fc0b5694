"""Validation of a new request and creation of its samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rondo.base.errors import InvalidRequest, RondoError
from rondo.client.types import GenerateRequest
from rondo.engine.config import EngineConfig
from rondo.engine.kv.blocks import salt_of
from rondo.engine.schedule.randomness import derive, mix
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scoring import PromptScores
from rondo.engine.weights.adapters import LoadedAdapter

DEFAULT_MAX_MODEL_LEN = 8192


class InputProcessor:
    def __init__(
        self, config: EngineConfig, max_model_len: int, vocab: int, eos_ids: tuple[int, ...]
    ) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self._vocab = vocab
        self._eos_ids = frozenset(eos_ids)
        self._arrivals = 0

    def samples(
        self, request: GenerateRequest, prompt: list[int], adapter: LoadedAdapter | None, now: float
    ) -> list[Request]:
        params = request.sampling
        room = 0 if request.pooling else self._max_model_len - len(prompt)
        new = room if params.max_tokens is None else min(params.max_tokens, room)
        ends = frozenset() if params.ignore_eos else self._eos_ids
        stop_ids = ends.union(params.stop_token_ids)
        seed = mix(self._config.seed * 2**32 + self._arrivals) if params.seed is None else params.seed
        salt = 0 if request.cache_salt is None else salt_of(request.cache_salt)
        samples = [
            Request(
                id=request.id,
                index=index,
                tokens=prompt if index == 0 else prompt.copy(),
                sampling=params,
                max_length=len(prompt) + new,
                arrival=self._arrivals + index,
                priority=request.priority,
                adapter=adapter,
                adapter_key=0 if adapter is None else adapter.key,
                salt=salt,
                pooling=request.pooling,
                seed=derive(seed, index),
                stop_ids=stop_ids,
                added_at=now,
            )
            for index in range(params.n)
        ]
        scores = PromptScores.of(prompt, params)
        self._arrivals += params.n
        for sample in samples:
            sample.siblings = samples if len(samples) > 1 else []
            sample.scores = scores
        return samples

    def check(self, request: GenerateRequest, prompt: list[int]) -> None:
        check_prompt(prompt, self._max_model_len, self._vocab, 0 if request.pooling else 1)
        params = request.sampling
        if request.pooling and params.n > 1:
            raise InvalidRequest(f"n is {params.n}, but a prompt has one vector: n must be 1.", param="n")
        self._check_known("logit_bias", params.logit_bias or ())
        self._check_known("stop_token_ids", params.stop_token_ids)
        self._check_known("allowed_token_ids", params.allowed_token_ids or ())
        if params.min_tokens and len(self._eos_ids.union(params.stop_token_ids)) == self._vocab:
            raise InvalidRequest(
                "min_tokens cannot hold back the end where every token is a stop token.", param="min_tokens"
            )
        if params.best_of not in (None, params.n):
            raise InvalidRequest(
                "best_of is done by LLM.generate and by the HTTP API: an engine streams all samples.",
                param="best_of",
            )
        if params.n > self._config.max_queued:
            raise InvalidRequest(
                f"n is {params.n}, but at most {self._config.max_queued} samples may wait here at all. "
                "Lower n, or raise max_queued.",
                param="n",
            )

    def _check_known(self, field: str, ids: Collection[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self._vocab):
            raise InvalidRequest(
                f"{field} names a token id outside the vocabulary of {self._vocab}.", param=field
            )


def check_prompt(
    prompt: Sequence[int],
    max_model_len: int,
    vocab: int,
    answer: int,
    name: str = "the prompt",
    param: str = "prompt",
    common: int = 0,
) -> None:
    """Raises an error for an invalid prompt. `answer` is the number of tokens to leave for the answer; `common` is a
    number of further prompt tokens, which only count towards the length."""
    length = len(prompt) + common
    if not length:
        raise InvalidRequest(f"{name} is empty: it needs at least one token.", param=param)
    if length + answer > max_model_len:
        raise context_exceeded(max_model_len, length, name.removeprefix("the "), param)
    if prompt and (min(prompt) < 0 or max(prompt) >= vocab):
        raise InvalidRequest(f"{name} has a token id outside the vocabulary of {vocab}.", param=param)


def context_exceeded(limit: int, length: int, name: str, param: str, most: bool = True) -> InvalidRequest:
    """The error in OpenAI's words, which clients match on. `length` is the number of tokens of `name`; without `most`,
    it is a number of characters that exceed `limit` tokens."""
    if not most:
        found = f"your {name} resulted in more than {limit} tokens ({length} characters)"
    elif length > limit:
        found = f"your {name} resulted in {length} tokens"
    else:
        found = f"you requested {length + 1} tokens ({length} in the {name}, 1 in the completion)"
    return InvalidRequest(
        f"This model's maximum context length is {limit} tokens. However, {found}. "
        f"Please reduce the length of the {name}.",
        param=param,
        code="context_length_exceeded",
    )


def nothing_left(request: Request) -> InvalidRequest:
    """The error for a request whose own constraints leave no next token."""
    at = f"after {request.generated} tokens of the answer"
    if request.matcher is not None:
        why = request.matcher.failure.partition("\n")[0] or "its other fields exclude what the grammar allows"
        return InvalidRequest(
            f"{request.matcher.param} leaves no next token {at}: {why}.", param=request.matcher.param
        )
    params = request.sampling
    field = (
        "bad_words"
        if params.bad_word_ids
        else "allowed_token_ids"
        if params.allowed_token_ids
        else "logit_bias"
    )
    return InvalidRequest(f"{field} and min_tokens leave no next token {at}.", param=field)


def not_finite() -> RondoError:
    return RondoError(
        "the model's output is not finite (NaN or infinity), so there is no next token and no vector. The weights are "
        "damaged, or overflow in this dtype: try another checkpoint, or float32.",
        code="not_finite",
    )


def max_model_len(config: EngineConfig, max_positions: int) -> int:
    if config.max_model_len is None:
        return min(max_positions, DEFAULT_MAX_MODEL_LEN)
    if config.max_model_len > max_positions:
        raise InvalidRequest(
            f"max_model_len is {config.max_model_len}, but the model knows only {max_positions} positions.",
            param="max_model_len",
        )
    return config.max_model_len
