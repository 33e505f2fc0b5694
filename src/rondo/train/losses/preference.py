"""Losses of whole answers: DPO, IPO, SimPO and Bradley-Terry over pairs, KTO over answers with a label.

Facts of a row's documents: `record` groups the answers of a pair, `chosen` is 1 for the better answer of a pair and for
a desirable answer, `reference` is its log-probability under the reference model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.train.losses.sums import LossOutput, Predictions


class PairLoss(ABC):
    """A loss of the margin between two answers' scores."""

    def count(self, row: PackedRow) -> int:
        return int(row.facts["chosen"].sum())

    def __call__(self, batch: Predictions) -> LossOutput:
        chosen, rejected = by_pair(self.scores(batch), batch)
        losses = self.losses(chosen, rejected)
        with torch.no_grad():
            sums = {
                "accuracy": (chosen > rejected).float().sum(),
                "margin": (chosen - rejected).sum(),
                "score/chosen": chosen.sum(),
                "score/rejected": rejected.sum(),
            }
        return LossOutput(losses.sum(), sums)

    @abstractmethod
    def scores(self, batch: Predictions) -> Tensor:
        """[D] score of each answer."""

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """[pairs] losses of the score pairs."""
        return -F.logsigmoid(chosen - rejected)


def by_pair(scores: Tensor, batch: Predictions) -> tuple[Tensor, Tensor]:
    """[D] -> scores of the better answers and, in the same order, of the others."""
    order = batch.facts["record"].argsort(stable=True)
    better = batch.facts["chosen"][order] > 0
    return scores[order[better]], scores[order[~better]]


def log_ratios(batch: Predictions) -> Tensor:
    """[D] log ratios of each answer's probability under the policy to its probability under the reference."""
    return batch.by_document(batch.logprobs * batch.weights) - batch.facts["reference"]


def lengths(batch: Predictions) -> Tensor:
    return batch.by_document(batch.weights)


@dataclass(frozen=True)
class Dpo(PairLoss):
    """Direct preference optimization (Rafailov et al., 2023)."""

    beta: float = 0.1

    def scores(self, batch: Predictions) -> Tensor:
        return self.beta * log_ratios(batch)


@dataclass(frozen=True)
class Ipo(PairLoss):
    """Identity preference optimization (Azar et al., 2023), on log ratios per token, as in its authors' experiments."""

    beta: float = 0.1

    def scores(self, batch: Predictions) -> Tensor:
        return log_ratios(batch) / lengths(batch)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return (chosen - rejected - 1 / (2 * self.beta)) ** 2


@dataclass(frozen=True)
class Simpo(PairLoss):
    """Simple preference optimization (Meng et al., 2024): no reference, log-probabilities per token, a target
    margin.
    """

    beta: float = 2.0
    gamma: float = 1.0

    def scores(self, batch: Predictions) -> Tensor:
        return self.beta * batch.by_document(batch.logprobs * batch.weights) / lengths(batch)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return -F.logsigmoid(chosen - rejected - self.gamma)


@dataclass(frozen=True)
class BradleyTerry(PairLoss):
    """Loss of a reward model, whose scores replace log-probabilities. `center` pulls their mean towards 0."""

    center: float = 0.0

    def scores(self, batch: Predictions) -> Tensor:
        return batch.by_document(batch.logprobs)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return super().losses(chosen, rejected) + self.center * (chosen + rejected) ** 2


@dataclass(frozen=True)
class Kto:
    """Kahneman-Tversky optimization (Ethayarajh et al., 2024). `kl` is the batch's estimate, at least 0, of the
    divergence of the policy from the reference: on answers paired with prompts of other records.
    """

    beta: float = 0.1
    kl: float = 0.0
    good_weight: float = 1.0
    bad_weight: float = 1.0

    def count(self, row: PackedRow) -> int:
        return len(row.documents) - 1

    def __call__(self, batch: Predictions) -> LossOutput:
        good = batch.facts["chosen"] > 0
        above = self.beta * (log_ratios(batch) - self.kl)
        losses = torch.where(
            good,
            self.good_weight * (1 - above.sigmoid()),
            self.bad_weight * (1 - (-above).sigmoid()),
        )
        right = ((above > 0) == good).float().sum()
        return LossOutput(losses.sum(), {"accuracy": right})
