"""Preference training on on-policy pairs: the best against the worst sample of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import ConfigError
from rondo.data.batching.balance import deal
from rondo.data.batching.groups import group_size, row_of_groups
from rondo.data.batching.packing import Document, PackedRow, Tree, plan_rows
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.update.config import PairsConfig
from rondo.rl.update.division import ALONE, RankDivision
from rondo.train.config import PreferenceConfig
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.losses.preference import Kto
from rondo.train.recipes.answers import Judged
from rondo.train.recipes.preference import Preference, loss_of, mismatched
from rondo.train.recipes.reference import Computed


@dataclass(frozen=True)
class PromptedRollout:
    prompt: list[int]
    rollout: Rollout


@dataclass(frozen=True)
class RolloutPair:
    chosen: PromptedRollout
    rejected: PromptedRollout


def make_pairs(groups: Sequence[SampleGroup], rewards: NDArray[np.float64]) -> list[RolloutPair]:
    """Pairs from rewards [P, S], NaN for samples without a score. A group with equal rewards yields no pair; ties are
    resolved in favour of the first sample.
    """
    found = []
    for group, row in zip(groups, rewards, strict=True):
        judged = [
            (float(reward), _answer(group, sample))
            for sample, reward in zip(group.samples, row, strict=False)
            if not np.isnan(reward) and any(sample.sampled)
        ]
        best = max(judged, key=lambda each: each[0], default=None)
        worst = min(judged, key=lambda each: each[0], default=None)
        if best is not None and worst is not None and best[0] > worst[0]:
            found.append(RolloutPair(best[1], worst[1]))
    return found


@dataclass(frozen=True)
class OnlinePreference:
    """Preference loss on a step's groups, in place of the policy loss. Without a separate `reference` model, the
    reference is the learner's base model with the adapter disabled.
    """

    config: PairsConfig
    reference: Evaluator | None
    tokens_per_row: int
    share_prefix: bool = True
    division: RankDivision = ALONE

    def forward_backward(self, learner: Learner, pairs: Sequence[RolloutPair]) -> Metrics:
        objective = self._objective(pairs)(learner, self.rows(pairs))
        found = objective.told(learner.forward_backward(objective.rows, objective.loss))
        return found | {"pairs": float(len(pairs))}

    def rows(self, pairs: Sequence[RolloutPair]) -> list[PackedRow]:
        """Rows of this rank; both samples of a pair are in the same row."""
        items = [self._items(number, pair) for number, pair in enumerate(pairs)]
        sizes = [sum(_size(item) for item in of) for of in items]
        own = [part == self.division.part for part in deal(sizes, self.division.parts)]
        items, sizes = list(compress(items, own)), list(compress(sizes, own))
        return [row_of_groups([items[i] for i in row]) for row in plan_rows(sizes, self.tokens_per_row)]

    def _objective(self, pairs: Sequence[RolloutPair]) -> Preference:
        settings = self.config.model_dump(exclude={"beta"} if self.config.beta is None else set())
        loss = loss_of(PreferenceConfig(**settings))
        by = Computed(self.reference) if self.config.needs_reference else None
        if not isinstance(loss, Kto):
            return Preference(loss, by)
        judged = [
            Judged(answer.prompt, answer.rollout.token_ids, good)
            for pair in pairs
            for answer, good in ((pair.chosen, True), (pair.rejected, False))
        ]
        return Preference(loss, by, mismatched(judged, self.tokens_per_row), self.tokens_per_row)

    def _items(self, number: int, pair: RolloutPair) -> list[Document | Tree]:
        """Documents or trees of a pair. For KTO each sample is a separate record."""
        alone = self.config.loss == "kto"
        trees = [
            Tree(
                answer.prompt, [_document(answer, 2 * number + i, 2 * number + i if alone else number, 1 - i)]
            )
            for i, answer in enumerate((pair.chosen, pair.rejected))
        ]
        if self.share_prefix and pair.chosen.prompt == pair.rejected.prompt:
            return [Tree(pair.chosen.prompt, [branch for tree in trees for branch in tree.branches])]
        return [document for tree in trees for document in tree.apart()]


def _answer(group: SampleGroup, sample: Rollout) -> PromptedRollout:
    if sample.earlier:
        raise ConfigError(
            "an episode whose past was rewritten is in several pieces, of which no pair can be made: use an algorithm "
            "that learns from each token, such as grpo",
            param="rl.pairs.loss",
        )
    return PromptedRollout(sample.prompt_ids or group.prompt_ids, sample)


def _document(answer: PromptedRollout, document: int, record: int, chosen: float) -> Document:
    """Document of a sample. Tokens that the policy did not sample, such as tool output, have weight 0."""
    facts = {"document": float(document), "record": float(record), "chosen": float(chosen)}
    rollout = answer.rollout
    return Document(rollout.token_ids, [float(own) for own in rollout.sampled], facts=facts)


def _size(item: Document | Tree) -> int:
    return len(item.tokens) - 1 if isinstance(item, Document) else group_size(item)
