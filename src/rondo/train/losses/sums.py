"""Losses as sums over a row's predictions, documents or pairs. The learner divides by their number in the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models.parts import take


@dataclass(frozen=True)
class Predictions:
    """Inputs of a loss for one row, [N] each: the policy's log-probabilities and the batch's data on the
    predictions.
    """

    logprobs: Tensor
    weights: Tensor
    columns: Mapping[str, Tensor]
    documents: Sequence[int] = (0,)
    """Start of each of the row's D documents among the predictions, and the end of the last one."""
    facts: Mapping[str, Tensor] = field(default_factory=dict)
    """Facts of documents, [D] each."""
    entropy: Tensor | None = None
    """Entropy of each token's distribution in nats, for losses with `needs_entropy`."""
    top1: Tensor | None = None
    """1 for each token that is the most likely one, otherwise 0, for losses with `needs_top1`."""
    values: Tensor | None = None
    """Output of the model's value head before each token, for losses with `needs_values`."""

    @property
    def sizes(self) -> Tensor:
        """[D] number of predictions of each document."""
        return torch.tensor(self.documents, device=self.logprobs.device).diff()

    def by_document(self, values: Tensor) -> Tensor:
        """[N] -> [D], the sum of each document, always in the same order, on a GPU too."""
        return by_document(values, self.documents)

    def spread(self, values: Tensor) -> Tensor:
        """[D] -> [N], the value of each prediction's document."""
        documents = torch.arange(len(values), device=values.device)
        return take(values, documents.repeat_interleave(self.sizes))


@dataclass(frozen=True)
class LossOutput:
    total: Tensor
    """The weighted sum to differentiate."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Metrics to average over the loss's count."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Metrics to reduce by maximum over the batch."""


def by_document(values: Tensor, documents: Sequence[int]) -> Tensor:
    sizes = torch.tensor(documents, device=values.device).diff()
    return torch.segment_reduce(values, "sum", lengths=sizes, initial=0)


Loss = Callable[[Predictions], LossOutput]
"""Function from predictions to a loss. A loss that averages over other units than predictions has a method `count(row)`
that returns their number.
"""


def counted(loss: Loss, row: PackedRow) -> int:
    count: Callable[[PackedRow], int] | None = getattr(loss, "count", None)
    return row.valid if count is None else count(row)


def needs_entropy(loss: Loss) -> bool:
    """Whether the loss requires `Predictions.entropy`, according to its attribute of that name."""
    return bool(getattr(loss, "needs_entropy", False))


def needs_top1(loss: Loss) -> bool:
    """Whether the loss uses `Predictions.top1` if it is available, according to its attribute of that name."""
    return bool(getattr(loss, "needs_top1", False))


def needs_values(loss: Loss) -> bool:
    """Whether the loss requires `Predictions.values`, according to its attribute of that name."""
    return bool(getattr(loss, "needs_values", False))


def cross_entropy(batch: Predictions) -> LossOutput:
    return LossOutput(-(batch.logprobs * batch.weights).sum())


@dataclass(frozen=True)
class AnswerCrossEntropy:
    """Cross entropy that also counts the tokens that greedy decoding would choose."""

    needs_top1: ClassVar[bool] = True

    def __call__(self, batch: Predictions) -> LossOutput:
        found = cross_entropy(batch)
        if batch.top1 is None:
            return found
        return replace(found, sums={"token_accuracy": batch.top1[batch.weights != 0].sum()})
