"""Training of a reward model: the preferred one of two answers to a prompt shall have the higher score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.data.batching.packing import Document, PackedRow, Tree
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.losses.objective import LossRequest, sizes
from rondo.train.losses.preference import BradleyTerry
from rondo.train.recipes.answers import PreferencePair

AFTER = 0
"""Token after the end of an answer: the score is read at the position that predicts it, and its value has no effect."""


def scored(answer: Sequence[int], **facts: float) -> Document:
    """The answer; its score is read at its last token."""
    return Document([*answer, AFTER], [0.0] * len(answer) + [1.0], facts=facts)


def pair_trees(pairs: Sequence[PreferencePair], first: int = 0) -> list[Tree]:
    """Trees of pairs. Records are numbered consecutively, from `first` on."""
    return [
        Tree(
            pair.prompt,
            [
                scored(pair.chosen, record=record, chosen=1.0),
                scored(pair.rejected, record=record, chosen=0.0),
            ],
        )
        for record, pair in enumerate(pairs, first)
    ]


@dataclass(frozen=True)
class RewardObjective:
    """Objective of reward-model training."""

    loss: BradleyTerry

    def __call__(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
        return LossRequest(rows, self.loss, sizes(evaluator, rows, self.loss))
