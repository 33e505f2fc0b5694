"""A stretch of an episode as it comes: a prompt, and then tokens of which each is the policy's or not."""

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

    def say(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """What the policy sampled, and is to learn from."""
        self.token_ids += ids
        self.sampled += [True] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

    def tell(self, ids: Sequence[int]) -> None:
        """What somebody else wrote, or what another piece teaches already."""
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
        """Without what nobody answered."""
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
