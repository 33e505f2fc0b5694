"""What a recipe asks of a batch's rows: a loss, and what it has to know beside the policy's log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rondo.data.batching.packing import PackedRow
from rondo.train.evaluation.evaluator import Evaluator, Metrics
from rondo.train.losses.sums import Loss, counted, cross_entropy
from rondo.train.metrics.meter import perplexity


@dataclass(frozen=True)
class LossRequest:
    rows: Sequence[PackedRow]
    loss: Loss
    facts: Metrics = field(default_factory=dict)
    """Metrics beside those of the loss."""

    def told(self, found: Metrics) -> Metrics:
        """What the loss came to, with what follows from it and what is known beside it."""
        follows = {"perplexity": perplexity(found["loss"])} if self.loss is cross_entropy else {}
        return found | follows | self.facts


Objective = Callable[[Evaluator, Sequence[PackedRow]], LossRequest]


def next_tokens(evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
    return LossRequest(rows, cross_entropy)


def sizes(evaluator: Evaluator, rows: Sequence[PackedRow], loss: Loss) -> Metrics:
    """How much a loss that is no mean over tokens learned from."""
    tokens, examples = evaluator.totals(
        sum(row.valid for row in rows), sum(counted(loss, row) for row in rows)
    )
    return {"tokens": float(tokens), "examples": float(examples)}
