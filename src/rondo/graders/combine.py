"""One score out of several graders' ones."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.graders.score import Grader, Outcome, Sample, Score


@dataclass(frozen=True)
class Combined:
    """The weighted sum of the graders' totals. Their parts stay visible, as `grader.part`."""

    graders: Mapping[str, Grader]
    weights: Mapping[str, float]

    async def score(self, sample: Sample) -> Score:
        scores = await asyncio.gather(*(grader.score(sample) for grader in self.graders.values()))
        return _sum(dict(zip(self.graders, scores)), self.weights)


def combine(graders: Mapping[str, Grader], weights: Mapping[str, float]) -> Combined:
    if not graders or set(graders) != set(weights):
        raise ConfigError(
            f"each grader needs one weight: the graders are {sorted(graders)}, the weights {sorted(weights)}."
        )
    if not all(map(math.isfinite, weights.values())):
        raise ConfigError(f"grader weights must be finite numbers, not {dict(weights)}.")
    return Combined(dict(graders), dict(weights))


def _sum(scores: Mapping[str, Score], weights: Mapping[str, float]) -> Score:
    parts: dict[str, float] = {}
    for name, score in scores.items():
        if score.outcome == "ok":
            parts[name] = score.total
            parts |= {f"{name}.{part}": value for part, value in score.parts.items()}
    detail = "; ".join(f"{name}: {score.detail}" for name, score in scores.items() if score.detail)
    outcome = _worst(scores)
    total = sum(weights[name] * score.total for name, score in scores.items()) if outcome == "ok" else 0.0
    return Score(outcome, total, parts, detail)


def _worst(scores: Mapping[str, Score]) -> Outcome:
    """A sum that lacks a summand is no judgement, so one failure fails all."""
    outcomes = {score.outcome for score in scores.values()}
    return "error" if "error" in outcomes else "timeout" if "timeout" in outcomes else "ok"
