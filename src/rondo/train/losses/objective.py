"""Objectives of recipes: a batch's rows, its loss, and metrics besides the loss's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rondo.data.batching.packing import PackedRow
from rondo.train.evaluation.evaluator import Evaluator, Metrics
from rondo.train.losses.sums import AnswerCrossEntropy, Loss, counted, cross_entropy
from rondo.train.metrics.meter import perplexity


@dataclass(frozen=True)
class LossRequest:
    rows: Sequence[PackedRow]
    loss: Loss
    facts: Metrics = field(default_factory=dict)
    """Metrics in addition to the loss's own."""

    def told(self, found: Metrics) -> Metrics:
        """Metrics of the loss, derived metrics such as perplexity, and `facts`."""
        per_token = self.loss is cross_entropy or isinstance(self.loss, AnswerCrossEntropy)
        follows = {"perplexity": perplexity(found["loss"])} if per_token else {}
        return found | follows | self.facts


Objective = Callable[[Evaluator, Sequence[PackedRow]], LossRequest]


def next_tokens(evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
    return LossRequest(rows, cross_entropy)


def answer_tokens(evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
    """Objective of SFT: next tokens, with their accuracy."""
    return LossRequest(rows, AnswerCrossEntropy())


def sizes(evaluator: Evaluator, rows: Sequence[PackedRow], loss: Loss) -> Metrics:
    """Batch size for losses without a mean over tokens."""
    tokens, examples = evaluator.totals(
        sum(row.valid for row in rows), sum(counted(loss, row) for row in rows)
    )
    return {"tokens": float(tokens), "examples": float(examples)}
