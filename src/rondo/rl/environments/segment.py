"""Segments of an episode: a prompt, and tokens marked as sampled by the policy or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rondo.graders import Score
from rondo.rl.rollout.types import Rollout
from rondo.text.tokenizer import Tokenizer


@dataclass
class Segment:
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append sampled tokens, which are trained on."""
        self.token_ids += ids
        self.sampled += [True] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

    def add_given(self, ids: Sequence[int]) -> None:
        """Append tokens of the environment, or tokens that another segment trains on."""
        self.token_ids += ids
        self.sampled += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [self.versions[-1] if self.versions else 0] * len(ids)

    def rollout(
        self,
        tokenizer: Tokenizer,
        finish_reason: str,
        score: Score | None = None,
        earlier: tuple[Rollout, ...] = (),
    ) -> Rollout:
        """The segment as a rollout, without tokens after the last sampled token."""
        end = max((i + 1 for i, sampled in enumerate(self.sampled) if sampled), default=0)
        return Rollout(
            token_ids=self.token_ids[:end],
            sampled=self.sampled[:end],
            logprobs=self.logprobs[:end],
            versions=self.versions[:end],
            text=tokenizer.decode(self.token_ids[:end], skip_special=False),
            finish_reason=finish_reason,
            score=score,
            prompt_ids=self.prompt_ids,
            earlier=earlier,
        )
