"""`best_of`: generates more samples than requested and returns the likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from rondo.client.types import SamplingParams


class Ranked(Protocol):
    index: int
    logprobs: list[float] | None


Sample = TypeVar("Sample", bound=Ranked)


def spread(params: SamplingParams) -> SamplingParams:
    """The parameters for the engine: all samples, with log-probabilities for the comparison."""
    if params.best_of is None:
        return params
    if params.best_of == params.n:
        return replace(params, best_of=None)
    return replace(params, n=params.best_of, best_of=None, logprobs=params.logprobs or 0)


def best(samples: Sequence[Sample], params: SamplingParams) -> list[Sample]:
    """The `n` samples with the highest mean log-probability, best first; removes log-probabilities beyond the
    request."""
    if params.best_of in (None, params.n):
        return list(samples)
    chosen = sorted(samples, key=_score, reverse=True)[: params.n]
    for index, sample in enumerate(chosen):
        sample.index = index
        if params.logprobs is None:
            sample.logprobs = None
    return chosen


def _score(sample: Ranked) -> float:
    logprobs = sample.logprobs or [float("-inf")]
    return sum(logprobs) / len(logprobs)
