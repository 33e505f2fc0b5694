"""Losses: sums over a row's predictions, documents or pairs. The learner divides by how many there are in the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.data.packing import Row


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

    def by_document(self, values: Tensor) -> Tensor:
        """[N] -> [D], the sum of each document. Always in the same order, on a GPU too."""
        return by_document(values, self.documents)


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


def counted(loss: Loss, row: Row) -> int:
    count: Callable[[Row], int] | None = getattr(loss, "count", None)
    return row.valid if count is None else count(row)


def cross_entropy(batch: Predictions) -> LossOutput:
    return LossOutput(-(batch.logprobs * batch.weights).sum())


@dataclass(frozen=True)
class PolicyLoss:
    """PPO's clipped surrogate, token by token.

    Columns: `advantages`, `sampler_logprobs` and, for `kl`, `reference_logprobs`. The group normalisation of GRPO,
    the constant length of Dr. GRPO and so on are in the advantages and weights.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: float = 0.0

    def __call__(self, batch: Predictions) -> LossOutput:
        advantages, sampled = batch.columns["advantages"], batch.columns["sampler_logprobs"]
        log_ratio = batch.logprobs - sampled
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        losses = -torch.minimum(ratio * advantages, clipped * advantages)
        with torch.no_grad():
            sums = {
                "clip_share": ((clipped - ratio) * advantages.sign() < 0).float().sum(),
                "sampler_kl": (ratio - log_ratio - 1).sum(),
                "logprob_diff": log_ratio.abs().sum(),
            }
            maxima = {"logprob_diff_max": log_ratio.abs().amax()}
        if self.kl:
            divergence = k3(batch.logprobs, batch.columns["reference_logprobs"])
            losses = losses + self.kl * divergence
            sums["reference_kl"] = divergence.detach().sum()
        return LossOutput((losses * batch.weights).sum(), sums, maxima)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's low-variance, never negative estimate of KL(policy | reference), a token."""
    difference = reference - logprobs
    return difference.exp() - difference - 1
