"""Reward model scores as a part of the reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from rondo.base.errors import ConfigError
from rondo.graders import Score
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.update.division import ALONE, RankDivision
from rondo.text.tokenizer import Tokenizer
from rondo.train.recipes.reward_model import RewardModel

PART = "reward_model"


class RewardScorer:
    """Scores of a reward model. Rows are packed, and a prompt is computed once for all of its samples. A reward model
    with the policy's tokenizer reads the sampled tokens; any other reads the text in its own chat template.
    """

    def __init__(self, judge: RewardModel, tokenizer: Tokenizer) -> None:
        self.judge = judge
        self._same_tokens = judge.tokenizer.vocabulary == tokenizer.vocabulary

    @classmethod
    def load(
        cls,
        model: str,
        tokenizer: Tokenizer,
        device: torch.device,
        tokens_per_row: int,
        division: RankDivision = ALONE,
    ) -> RewardScorer:
        """Load a reward model, which computes in its stored type."""
        mesh_for = None if division.mesh is None else division.mesh_for
        judge = RewardModel.load(model, device=device, tokens_per_row=tokens_per_row, mesh_for=mesh_for)
        return cls(judge, tokenizer)

    def scores(self, groups: Sequence[SampleGroup]) -> list[list[float]]:
        """Scores of every sample, in order."""
        if self._same_tokens:
            return self._of_tokens(groups)
        chats = [_chat(group, sample) for group in groups for sample in group.samples]
        flat = iter(self.judge.score_chats(chats))
        return [[next(flat) for _ in group.samples] for group in groups]

    def _of_tokens(self, groups: Sequence[SampleGroup]) -> list[list[float]]:
        """Scores of sampled tokens. A sample's own prompt overrides the group's."""
        asked, places = [], []
        for g, group in enumerate(groups):
            own = [(s.prompt_ids or group.prompt_ids, i) for i, s in enumerate(group.samples)]
            for prompt in {tuple(prompt): None for prompt, _ in own}:
                of = [i for p, i in own if tuple(p) == prompt]
                asked.append((prompt, [group.samples[i].token_ids for i in of]))
                places.append((g, of))
        table = [[math.nan] * len(group.samples) for group in groups]
        for (g, of), found in zip(places, self.judge.score_groups(asked), strict=True):
            for i, value in zip(of, found, strict=True):
                table[g][i] = value
        return table


def with_reward_model(
    groups: Sequence[SampleGroup], found: Sequence[Sequence[float]], weight: float
) -> list[SampleGroup]:
    """Each sample's score with the reward model's score as a further part. Samples without a valid score are
    unchanged.
    """
    return [
        replace(
            group, samples=[_joined(s, value, weight) for s, value in zip(group.samples, row, strict=True)]
        )
        for group, row in zip(groups, found, strict=True)
    ]


def _joined(sample: Rollout, value: float, weight: float) -> Rollout:
    score = sample.score
    if score is None or score.outcome != "ok":
        return sample
    if not math.isfinite(value):
        return replace(sample, score=Score("error", 0.0, score.parts, f"the reward model says {value}"))
    return replace(
        sample, score=Score("ok", score.total + weight * value, {**score.parts, PART: value}, score.detail)
    )


def _chat(group: SampleGroup, sample: Rollout) -> list[dict[str, str]]:
    if sample.earlier or not all(sample.sampled):
        raise ConfigError(
            "the reward model has another tokenizer than the policy, and is given text, which works for one answer to "
            "one prompt and not for episodes of several turns: choose a reward model with the policy's tokenizer",
            param="rl.reward_model.model",
        )
    return [*group.problem.messages, {"role": "assistant", "content": sample.text}]
