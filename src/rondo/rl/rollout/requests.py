"""Parts that all collectors share: prompts of problems, limits of requests and the choice of groups to resample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from rondo.client.types import SamplingParams
from rondo.graders import Score
from rondo.rl.config import RlConfig
from rondo.rl.rollout.scoring import RolloutScorer
from rondo.rl.rollout.types import Rollout, SampleGroup, as_sample
from rondo.rl.tasks.types import AnyTask, Problem
from rondo.rl.update.advantages import teaching
from rondo.rl.update.device_sharing import Roles
from rondo.rl.update.rewards import earned
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Metrics

MOST_TOO_LONG = 16
"""Maximum number of resampling attempts for a prompt that is too long; after them the group stays empty."""

ENDED = Score("error", 0.0, detail="the engine ended the answer before its end")


@dataclass
class RolloutBatch:
    groups: list[SampleGroup]
    """One group per number, in order. Empty groups are included."""
    dropped: list[SampleGroup] = field(default_factory=list)
    """Scored groups replaced by another draw."""
    counts: Counter[str] = field(default_factory=Counter)
    engine: Metrics = field(default_factory=dict)
    """Counts of recovered engine failures."""

    @property
    def metrics(self) -> Metrics:
        names = ("drawn_again", "too_long", "empty")
        return {f"groups/{name}": float(self.counts[name]) for name in names} | self.engine


class Judging(Protocol):
    """Auxiliary models as rollouts use them."""

    roles: Roles

    def judged(self, groups: list[SampleGroup]) -> list[SampleGroup]:
        """The groups with the reward model's score added."""


class Unscored:
    """No reward model: it scores the groups later, on all ranks."""

    def __init__(self) -> None:
        self.roles = Roles([])

    def judged(self, groups: list[SampleGroup]) -> list[SampleGroup]:
        return groups


@dataclass
class RolloutBuilder:
    tokenizer: Tokenizer
    task: AnyTask
    config: RlConfig
    max_tokens: int
    longest: int
    """Maximum tokens of prompt and completion together, within the limits of both the engine and the learner."""
    scorer: RolloutScorer
    company: Judging
    """Auxiliary models; the reward model adds its reward to the scores."""

    @property
    def sampling(self) -> SamplingParams:
        config = self.config
        return SamplingParams(
            n=config.samples_per_prompt,
            max_tokens=self.max_tokens,
            temperature=config.temperature,
            logprobs=0,
        )

    def prompt(self, problem: Problem) -> list[int] | None:
        """Token IDs of the prompt, or None if no token is left for a completion."""
        ids = self.tokenizer.apply_chat(problem.messages)
        return ids if len(ids) < self.longest else None

    def fitting(self, sampling: SamplingParams, prompt: list[int]) -> SamplingParams:
        """Sampling parameters with `max_tokens` limited to the rest of the context."""
        room = self.longest - len(prompt)
        most = sampling.max_tokens
        return sampling if most is not None and most <= room else sampling.with_(max_tokens=room)

    async def judged(self, problem: Problem, rollout: Rollout) -> Rollout:
        """The scored rollout. A rollout that the engine aborted is not graded and has an error as its score."""
        if rollout.score is not None:
            return rollout
        if rollout.finish_reason == "abort":
            return rollout.scored(ENDED)
        return rollout.scored(await self.scorer.score(as_sample(problem, rollout)))

    def again(self, group: SampleGroup, attempt: int) -> str | None:
        """The reason to resample a group, or None."""
        if not group.samples:
            return "too_long" if attempt < MOST_TOO_LONG else None
        if attempt < self.config.dynamic_sampling and not self._teaches(group):
            return "equal"
        return None

    def _teaches(self, group: SampleGroup) -> bool:
        """Whether the samples of the group have different rewards."""
        return bool(teaching(earned([group], self.config, self.max_tokens))[0])
