"""Losses: sums over a row's predictions, documents or pairs. The learner divides by how many there are in the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.models.parts import take


@dataclass(frozen=True)
class Predictions:
    """What a loss sees of one row, [N] each: the policy's log-probabilities and what the batch says about them."""

    logprobs: Tensor
    weights: Tensor
    columns: Mapping[str, Tensor]
    documents: Sequence[int] = (0,)
    """Where the predictions of each of the row's D documents begin, and where the last one's end."""
    facts: Mapping[str, Tensor] = field(default_factory=dict)
    """[D] each."""
    entropy: Tensor | None = None
    """Of the distribution that each token was chosen from, in nats, for losses with `needs_entropy`."""
    values: Tensor | None = None
    """What the model's value head says before each token, for losses with `needs_values`."""

    @property
    def sizes(self) -> Tensor:
        """[D] how many predictions each document has."""
        return torch.tensor(self.documents, device=self.logprobs.device).diff()

    def by_document(self, values: Tensor) -> Tensor:
        """[N] -> [D], the sum of each document. Always in the same order, on a GPU too."""
        return by_document(values, self.documents)

    def spread(self, values: Tensor) -> Tensor:
        """[D] -> [N], to each prediction its document's."""
        documents = torch.arange(len(values), device=values.device)
        return take(values, documents.repeat_interleave(self.sizes))


@dataclass(frozen=True)
class LossOutput:
    total: Tensor
    """The weighted sum to differentiate."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Metrics that are averaged over all that the loss counts."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Metrics of which the batch's largest is kept."""


def by_document(values: Tensor, documents: Sequence[int]) -> Tensor:
    sizes = torch.tensor(documents, device=values.device).diff()
    return torch.segment_reduce(values, "sum", lengths=sizes, initial=0)


Loss = Callable[[Predictions], LossOutput]
"""One that averages over something else than predictions has a method `count(row)` that says over how many."""


def counted(loss: Loss, row: PackedRow) -> int:
    count: Callable[[PackedRow], int] | None = getattr(loss, "count", None)
    return row.valid if count is None else count(row)


def needs_entropy(loss: Loss) -> bool:
    """Whether the loss says, in an attribute of that name, that it wants `Predictions.entropy`."""
    return bool(getattr(loss, "needs_entropy", False))


def needs_values(loss: Loss) -> bool:
    """Whether the loss says, in an attribute of that name, that it wants `Predictions.values`."""
    return bool(getattr(loss, "needs_values", False))


def cross_entropy(batch: Predictions) -> LossOutput:
    return LossOutput(-(batch.logprobs * batch.weights).sum())
