"""Training a reward model: of two answers to a prompt, the one that people preferred is to score higher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondo.data.batching.packing import Document, PackedRow, Tree
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.losses.objective import LossRequest, sizes
from rondo.train.losses.preference import BradleyTerry
from rondo.train.recipes.answers import PreferencePair

AFTER = 0
"""A score is read where the token after the last one would be predicted; which token that is does not matter."""


def scored(answer: Sequence[int], **facts: float) -> Document:
    """The answer, whose last token is where its score is read."""
    return Document([*answer, AFTER], [0.0] * len(answer) + [1.0], facts=facts)


def pair_trees(pairs: Sequence[PreferencePair], first: int = 0) -> list[Tree]:
    """Records are numbered through, from `first` on."""
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
    """What a step does with a batch."""

    loss: BradleyTerry

    def __call__(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
        return LossRequest(rows, self.loss, sizes(evaluator, rows, self.loss))
