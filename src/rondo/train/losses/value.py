"""The critic's loss: error of the predicted return at each token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.data.batching.packing import PackedRow
from rondo.train.losses.sums import Loss, LossOutput, Predictions, counted, needs_entropy


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error (PPO's, Schulman et al., 2017). Every prediction has equal weight: the batch's weights are
    for the policy.

    Columns: `returns` are the targets, and `values` the predictions before the step. With `clip`, a value gains nothing
    by moving further than that from its old value: the larger of both errors counts.
    """

    clip: float = 0.2

    def __call__(self, batch: Predictions) -> LossOutput:
        """Loss of a scoring model, whose scores replace log-probabilities."""
        return self.of(batch.logprobs, batch)

    def of(self, values: Tensor, batch: Predictions) -> LossOutput:
        returns = batch.columns["returns"]
        errors = (values - returns) ** 2
        losses, sums = errors, {}
        if self.clip:
            before = batch.columns["values"]
            held = torch.clamp(values, before - self.clip, before + self.clip)
            losses = torch.maximum(errors, (held - returns) ** 2)
            sums["critic/clip_share"] = (losses > errors).float().sum()
        total = losses.sum() / 2
        return LossOutput(total, {"critic/loss": total.detach(), **sums})


@dataclass(frozen=True)
class WithValues:
    """Losses of the policy and of its critic, in one pass over their shared layers."""

    policy: Loss
    value: ValueLoss
    coefficient: float

    @property
    def needs_entropy(self) -> bool:
        return needs_entropy(self.policy)

    @property
    def needs_values(self) -> bool:
        return True

    def count(self, row: PackedRow) -> int:
        return counted(self.policy, row)

    def __call__(self, batch: Predictions) -> LossOutput:
        assert batch.values is not None, "the model has no value head"
        policy, value = self.policy(batch), self.value.of(batch.values, batch)
        total = policy.total + self.coefficient * value.total
        return LossOutput(total, {**policy.sums, **value.sums}, policy.maxima)
