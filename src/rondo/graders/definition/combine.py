"""Combination of several graders' scores into one score."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.graders.definition.formula import formula
from rondo.graders.score import Grader, Outcome, Sample, Score, check_gradable


@dataclass(frozen=True)
class Combined:
    """Weighted sum of the graders' totals. Their parts remain in the score as `grader.part`."""

    graders: Mapping[str, Grader]
    weights: Mapping[str, float]

    def check_sample(self, sample: Sample) -> None:
        _check(self.graders, sample)

    async def score(self, sample: Sample) -> Score:
        def total(totals: Mapping[str, float]) -> float:
            return sum(self.weights[name] * value for name, value in totals.items())

        return _merge(await _scores(self.graders, sample), total)


@dataclass(frozen=True)
class Multi:
    """OpenAI's `multi`: a formula over the graders' totals."""

    graders: Mapping[str, Grader]
    calculate_output: str

    def __post_init__(self) -> None:
        if not self.graders:
            raise ConfigError("graders must name at least one grader.", param="graders")
        formula(self.calculate_output, self.graders)

    def check_sample(self, sample: Sample) -> None:
        _check(self.graders, sample)

    async def score(self, sample: Sample) -> Score:
        """A formula without a value, such as a division by 0, results in an error, not in a score of 0."""
        scores = await _scores(self.graders, sample)
        try:
            return _merge(scores, formula(self.calculate_output, self.graders).value)
        except ArithmeticError as error:
            failed = f"calculate_output {self.calculate_output!r} has no value: {error}"
            return Score("error", 0.0, _parts(scores), failed, _faults(scores))


def combine(graders: Mapping[str, Grader], weights: Mapping[str, float]) -> Combined:
    if not graders or set(graders) != set(weights):
        raise ConfigError(
            f"each grader needs one weight: the graders are {sorted(graders)}, the weights {sorted(weights)}."
        )
    if not all(map(math.isfinite, weights.values())):
        raise ConfigError(f"grader weights must be finite numbers, not {dict(weights)}.")
    return Combined(dict(graders), dict(weights))


def _check(graders: Mapping[str, Grader], sample: Sample) -> None:
    for grader in graders.values():
        check_gradable(grader, sample)


async def _scores(graders: Mapping[str, Grader], sample: Sample) -> dict[str, Score]:
    scores = await asyncio.gather(*(grader.score(sample) for grader in graders.values()))
    return dict(zip(graders, scores))


def _merge(scores: Mapping[str, Score], total: Callable[[Mapping[str, float]], float]) -> Score:
    detail = "; ".join(f"{name}: {score.detail}" for name, score in scores.items() if score.detail)
    outcome = _worst(scores)
    value = total({name: score.total for name, score in scores.items()}) if outcome == "ok" else 0.0
    return Score(outcome, value, _parts(scores), detail, _faults(scores))


def _faults(scores: Mapping[str, Score]) -> dict[str, str]:
    return {
        fault: f"{name}: {said}" for name, score in scores.items() for fault, said in score.faults.items()
    }


def _parts(scores: Mapping[str, Score]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for name, score in scores.items():
        if score.outcome == "ok":
            parts[name] = score.total
            parts |= {f"{name}.{part}": value for part, value in score.parts.items()}
    return parts


def _worst(scores: Mapping[str, Score]) -> Outcome:
    """A sum with a missing summand is undefined, so the failure of one grader fails the combination."""
    outcomes = {score.outcome for score in scores.values()}
    return "error" if "error" in outcomes else "timeout" if "timeout" in outcomes else "ok"
