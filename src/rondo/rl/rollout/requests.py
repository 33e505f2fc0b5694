"""What every way of collecting groups has in common: how a problem becomes a prompt, and which groups are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rondo.client.types import SamplingParams
from rondo.graders import Score
from rondo.rl.config import RlConfig
from rondo.rl.rollout.scoring import RolloutScorer
from rondo.rl.rollout.types import Rollout, SampleGroup, as_sample
from rondo.rl.tasks.registry import AnyTask, Problem
from rondo.rl.update.advantages import teaching
from rondo.rl.update.aux_models import AuxiliaryModels
from rondo.rl.update.rewards import earned
from rondo.text.tokenizer import Tokenizer
from rondo.train.evaluation.evaluator import Metrics

MOST_TOO_LONG = 16
"""How often a prompt that does not fit is drawn anew before its group stays empty."""

ENDED = Score("error", 0.0, detail="the engine ended the answer before its end")


@dataclass
class RolloutBatch:
    groups: list[SampleGroup]
    """One a number, in order. An empty one is there too."""
    dropped: list[SampleGroup] = field(default_factory=list)
    """Scored, and drawn anew."""
    counts: Counter[str] = field(default_factory=Counter)
    engine: Metrics = field(default_factory=dict)
    """What went wrong with engines, and was made good."""

    @property
    def metrics(self) -> Metrics:
        names = ("drawn_again", "too_long", "empty")
        return {f"groups/{name}": float(self.counts[name]) for name in names} | self.engine


@dataclass
class RolloutBuilder:
    tokenizer: Tokenizer
    task: AnyTask
    config: RlConfig
    max_tokens: int
    longest: int
    """Prompt and answer together: what both the engine and the learner can take."""
    scorer: RolloutScorer
    company: AuxiliaryModels
    """Who adds the reward model's part to the scores."""

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
        """None where it leaves no room for an answer."""
        ids = self.tokenizer.apply_chat(problem.messages)
        return ids if len(ids) < self.longest else None

    def fitting(self, sampling: SamplingParams, prompt: list[int]) -> SamplingParams:
        """An answer ends where nothing more fits."""
        room = self.longest - len(prompt)
        most = sampling.max_tokens
        return sampling if most is not None and most <= room else sampling.with_(max_tokens=room)

    async def judged(self, problem: Problem, rollout: Rollout) -> Rollout:
        """One that the engine broke off has no score that would mean anything."""
        if rollout.score is not None:
            return rollout
        if rollout.finish_reason == "abort":
            return rollout.scored(ENDED)
        return rollout.scored(await self.scorer.score(as_sample(problem, rollout)))

    def again(self, group: SampleGroup, attempt: int) -> str | None:
        """Why a group is to be drawn anew, if it is."""
        if not group.samples:
            return "too_long" if attempt < MOST_TOO_LONG else None
        if attempt < self.config.dynamic_sampling and not self._teaches(group):
            return "equal"
        return None

    def _teaches(self, group: SampleGroup) -> bool:
        """Whether some of its samples earned more than others."""
        return bool(teaching(earned([group], self.config, self.max_tokens))[0])
