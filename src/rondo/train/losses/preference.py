"""Losses of whole answers: DPO, IPO, SimPO and Bradley-Terry over pairs, KTO over answers with a label.

Facts of a row's documents: `record` says which belong together, `chosen` is 1 for the better of two and for an answer
that was good, `reference` is its log-probability under the reference model.
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
        """[D] what each answer is worth to the model."""

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """[pairs]"""
        return -F.logsigmoid(chosen - rejected)


def by_pair(scores: Tensor, batch: Predictions) -> tuple[Tensor, Tensor]:
    """[D] -> those of the better answers and, in the same order, those of the others."""
    order = batch.facts["record"].argsort(stable=True)
    better = batch.facts["chosen"][order] > 0
    return scores[order[better]], scores[order[~better]]


def log_ratios(batch: Predictions) -> Tensor:
    """[D] how much likelier each answer is to the policy than to the reference, as a logarithm."""
    return batch.by_document(batch.logprobs * batch.weights) - batch.facts["reference"]


def lengths(batch: Predictions) -> Tensor:
    return batch.by_document(batch.weights)


@dataclass(frozen=True)
class Dpo(PairLoss):
    """Direct preference optimisation (Rafailov et al., 2023)."""

    beta: float = 0.1

    def scores(self, batch: Predictions) -> Tensor:
        return self.beta * log_ratios(batch)


@dataclass(frozen=True)
class Ipo(PairLoss):
    """Identity preference optimisation (Azar et al., 2023), on log-ratios a token, as its authors ran it."""

    beta: float = 0.1

    def scores(self, batch: Predictions) -> Tensor:
        return log_ratios(batch) / lengths(batch)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return (chosen - rejected - 1 / (2 * self.beta)) ** 2


@dataclass(frozen=True)
class Simpo(PairLoss):
    """Simple preference optimisation (Meng et al., 2024): no reference, log-probabilities a token, a target margin."""

    beta: float = 2.0
    gamma: float = 1.0

    def scores(self, batch: Predictions) -> Tensor:
        return self.beta * batch.by_document(batch.logprobs * batch.weights) / lengths(batch)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return -F.logsigmoid(chosen - rejected - self.gamma)


@dataclass(frozen=True)
class BradleyTerry(PairLoss):
    """Of a reward model, whose scores stand in the place of log-probabilities. `center` keeps their mean near 0."""

    center: float = 0.0

    def scores(self, batch: Predictions) -> Tensor:
        return batch.by_document(batch.logprobs)

    def losses(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return super().losses(chosen, rejected) + self.center * (chosen + rejected) ** 2


@dataclass(frozen=True)
class Kto:
    """Kahneman-Tversky optimisation (Ethayarajh et al., 2024). `kl` is the batch's estimate of how far the policy is
    from the reference, at least 0: of answers beside prompts that are not theirs."""

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
