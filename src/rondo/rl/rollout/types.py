"""Prompts and samples as tokens, exactly as the engine sampled them; the text is for graders only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rondo.client.types import CompletionOutput
from rondo.graders import Sample, Score
from rondo.rl.tasks.types import Problem

if TYPE_CHECKING:
    from rondo.train.evaluation.evaluator import Metrics


@dataclass(frozen=True)
class Rollout:
    """One sample: the tokens after the prompt, including tool output."""

    token_ids: list[int]
    sampled: list[bool]
    """True for tokens that the policy sampled; only these are trained on."""
    logprobs: list[float]
    """Log-probabilities of the sampler, 0 for all other tokens."""
    versions: list[int]
    """The weight version of each token; a token that was not sampled has the version of the token before."""
    text: str
    finish_reason: str
    score: Score | None = None
    prompt_ids: list[int] | None = None
    """The sample's own prompt, if it differs from the group's."""
    earlier: tuple[Rollout, ...] = ()
    """Earlier segments of the same episode. They share this rollout's score and are trained on as separate documents.
    """

    @property
    def pieces(self) -> tuple[Rollout, ...]:
        return (*self.earlier, self)

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(sum(piece.sampled) for piece in self.pieces)

    @property
    def judged(self) -> bool:
        return self.score is not None and self.score.outcome == "ok"

    def scored(self, score: Score) -> Rollout:
        return replace(self, score=score)


@dataclass(frozen=True)
class SampleGroup:
    """One prompt and its samples. A group without samples is empty: the prompt was too long or no sample was
    completed.
    """

    problem: Problem
    prompt_ids: list[int]
    samples: list[Rollout]


@dataclass(frozen=True)
class RlStep:
    """A completed step, for observers of the loop; entries that an observer adds to `metrics` are logged."""

    number: int
    version: int
    """Version of the weights before the update; the step's push creates the next version."""
    groups: list[SampleGroup]
    """All groups scored in the step, including resampled groups."""
    advantages: list[list[list[float]]]
    """One number per token for each group and sample; empty for a sample that was not trained on."""
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
    """[P, S]; NaN for samples without a valid score and for missing samples."""
    most = max((len(group.samples) for group in groups), default=0)
    table = np.full((len(groups), most), np.nan)
    for row, group in zip(table, groups, strict=True):
        for i, sample in enumerate(group.samples):
            if sample.score is not None and sample.score.outcome == "ok":
                row[i] = sample.score.total
    return table


def reward_metrics(groups: Sequence[SampleGroup]) -> Metrics:
    """Mean total and mean of each part over the scored samples, and the number of samples without a score."""
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
    """A group's samples as JSON for a checkpoint; the problem follows from the group's number."""
    return {"prompt_ids": group.prompt_ids, "samples": [asdict(sample) for sample in group.samples]}


def unpacked(state: dict[str, Any], problem: Problem) -> SampleGroup:
    return SampleGroup(problem, state["prompt_ids"], [_rollout(sample) for sample in state["samples"]])


def _rollout(state: dict[str, Any]) -> Rollout:
    score = None if state["score"] is None else Score(**state["score"])
    earlier = tuple(_rollout(piece) for piece in state["earlier"])
    return Rollout(**{**state, "score": score, "earlier": earlier})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
