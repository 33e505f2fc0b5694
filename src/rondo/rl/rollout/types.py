"""What the policy was asked and what it said: tokens as the engine sampled them; text is for graders alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rondo.client.types import CompletionOutput
from rondo.graders import Sample, Score
from rondo.rl.tasks.registry import Problem

if TYPE_CHECKING:
    from rondo.train.evaluation.evaluator import Metrics


@dataclass(frozen=True)
class Rollout:
    """One sample: what follows the prompt, tool output included where there is any."""

    token_ids: list[int]
    sampled: list[bool]
    """True where the policy chose the token: these alone are trained."""
    logprobs: list[float]
    """Of the sampler, 0 where not sampled."""
    versions: list[int]
    """The weight version of each token; where it was not sampled, that of the one before."""
    text: str
    finish_reason: str
    score: Score | None = None
    prompt_ids: list[int] | None = None
    """Its own prompt, where that is not its group's."""
    earlier: tuple[Rollout, ...] = ()
    """Other pieces of the same episode: they have this one's score, and are trained as documents of their own."""

    @property
    def pieces(self) -> tuple[Rollout, ...]:
        return (*self.earlier, self)

    @property
    def trained(self) -> int:
        """How many tokens are."""
        return sum(sum(piece.sampled) for piece in self.pieces)

    @property
    def judged(self) -> bool:
        return self.score is not None and self.score.outcome == "ok"

    def scored(self, score: Score) -> Rollout:
        return replace(self, score=score)


@dataclass(frozen=True)
class SampleGroup:
    """One prompt and its samples. Without any it is empty: there was nothing to ask, or nobody answered."""

    problem: Problem
    prompt_ids: list[int]
    samples: list[Rollout]


@dataclass(frozen=True)
class RlStep:
    """What observers of the loop are told once a step is done; what they add to `metrics` is logged."""

    number: int
    version: int
    """Of the weights that were trained; the step's push made the one after it."""
    groups: list[SampleGroup]
    """All that were scored in the step, those that were drawn anew included."""
    advantages: list[list[list[float]]]
    """For each group and sample one number a token; none where the sample was not trained on."""
    metrics: Metrics


def rollout_of(output: CompletionOutput) -> Rollout:
    count = len(output.token_ids)
    return Rollout(
        output.token_ids,
        [True] * count,
        output.logprobs or [0.0] * count,
        output.weight_versions,
        output.text,
        output.finish_reason or "abort",
    )


def as_sample(problem: Problem, rollout: Rollout) -> Sample:
    finished = rollout.finish_reason == "stop"
    return Sample(problem.question, rollout.text, metadata={**problem.facts, "finished": finished})


def rewards(groups: Sequence[SampleGroup]) -> NDArray[np.float64]:
    """[P, S]; NaN where a grader did not judge, or a group has fewer samples."""
    most = max((len(group.samples) for group in groups), default=0)
    table = np.full((len(groups), most), np.nan)
    for row, group in zip(table, groups, strict=True):
        for i, sample in enumerate(group.samples):
            if sample.score is not None and sample.score.outcome == "ok":
                row[i] = sample.score.total
    return table


def reward_metrics(groups: Sequence[SampleGroup]) -> Metrics:
    """The mean total and the mean of each part over what was judged, and how many were not."""
    scores = [sample.score for group in groups for sample in group.samples]
    ok = [score for score in scores if score is not None and score.outcome == "ok"]
    metrics: Metrics = {
        "reward": _mean([score.total for score in ok]),
        "unjudged": float(len(scores) - len(ok)),
    }
    for name in dict.fromkeys(name for score in ok for name in score.parts):
        metrics[f"reward/{name}"] = _mean([score.parts[name] for score in ok if name in score.parts])
    return metrics


def packed_up(group: SampleGroup) -> dict[str, Any]:
    """A group's samples for a checkpoint's JSON; its problem follows from its number."""
    return {"prompt_ids": group.prompt_ids, "samples": [asdict(sample) for sample in group.samples]}


def unpacked(told: dict[str, Any], problem: Problem) -> SampleGroup:
    return SampleGroup(problem, told["prompt_ids"], [_rollout(sample) for sample in told["samples"]])


def _rollout(told: dict[str, Any]) -> Rollout:
    score = None if told["score"] is None else Score(**told["score"])
    earlier = tuple(_rollout(piece) for piece in told["earlier"])
    return Rollout(**{**told, "score": score, "earlier": earlier})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
