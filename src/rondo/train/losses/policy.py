"""The policy loss: one surrogate, whose settings select the algorithm.

Differences between algorithms in the treatment of rewards, per group or per token, are in the rows' advantages and
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rondo.train.losses.sums import LossOutput, Predictions

Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class Correction:
    """Importance sampling for the mismatch between sampler and learner before any update: different rounding in another
    engine, or older weights. A weight is the ratio of the learner's to the sampler's probability, for a token or for a
    whole answer.
    """

    kind: Literal["truncate", "mask"] = "truncate"
    """Treatment of a weight outside of `floor` and `cap`: it is replaced by the bound, or by 0."""
    level: Literal["token", "sequence"] = "token"
    cap: float = 3.0
    floor: float = 0.0

    def weights(self, batch: Predictions, difference: Tensor) -> tuple[Tensor, Tensor]:
        """[N] differences of the learner's and the sampler's log-probabilities -> [N] weights, and a mask of weights
        out of bounds.
        """
        whole = difference if self.level == "token" else batch.spread(batch.by_document(difference))
        ratio = whole.exp()
        within = ratio.clamp(self.floor, self.cap)
        cut = within != ratio
        return (within if self.kind == "truncate" else ratio.masked_fill(cut, 0.0)), cut


@dataclass(frozen=True)
class PolicyLoss:
    """Loss over the ratio of the policy's probability of a token to the probability at sampling.

    Columns: `advantages`, `sampler_logprobs`; for `kl` `reference_logprobs`. `old_logprobs` are the learner's own
    before the step's first mini-batch: if present, they are the denominator of the ratio, and the sampler's are used
    only for a correction. Without them the denominator is the sampler's log-probabilities or, with a correction, the
    present ones, which is correct if a step has one mini-batch.

    Equal log-probabilities yield a ratio of exactly 1, and divergences of exactly 0.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: float = 0.0
    surrogate: Literal["clip", "cispo", "reinforce"] = "clip"
    """clip: as in PPO. cispo: REINFORCE with each token weighted by its clipped ratio. reinforce: no ratio, as for
    on-policy samples.
    """
    ratio: Literal["token", "sequence", "product"] = "token"
    """sequence: as in GSPO, the geometric mean over an answer's tokens. product: the ratio of the whole answer."""
    dual_clip: float = 0.0
    """Largest ratio that counts against a token with a negative advantage; 0: no limit."""
    kl_estimator: Estimator = "k3"
    kl_unbiased: bool = False
    """Multiplies the KL estimate by the ratio, so that its gradient is the gradient of the divergence."""
    correction: Correction | None = None
    entropy: float = 0.0
    """Coefficient of the entropy bonus, per nat of the mean entropy."""
    measure_entropy: bool = False

    @property
    def needs_entropy(self) -> bool:
        return self.measure_entropy or bool(self.entropy)

    def __call__(self, batch: Predictions) -> LossOutput:
        sampler = batch.columns["sampler_logprobs"]
        present = batch.logprobs.detach()
        learner = batch.columns.get("old_logprobs", present)
        old = sampler if learner is present and self.correction is None else learner
        ratio = self._over_answers(batch, batch.logprobs - old).exp()
        losses = self._surrogate(batch, ratio)
        sums, maxima = self._drift(batch.columns["advantages"], ratio.detach())
        sums["policy_kl"] = _excess(present - old).sum()
        sums |= {
            "sampler_kl": _excess(learner - sampler).sum(),
            "logprob_diff": (learner - sampler).abs().sum(),
        }
        maxima["logprob_diff_max"] = _largest((learner - sampler).abs())
        if self.correction is not None:
            weights, cut = self.correction.weights(batch, learner - sampler)
            losses = losses * weights
            sums |= {"correction": weights.sum(), "correction_share": cut.float().sum()}
        if "reference_logprobs" in batch.columns:
            sums["reference_kl"] = k3(present, batch.columns["reference_logprobs"]).sum()
        if self.kl:
            losses = losses + self.kl * self._divergence(batch, ratio)
        total = (losses * batch.weights).sum()
        if self.needs_entropy:
            assert batch.entropy is not None
            sums["entropy"] = batch.entropy.detach().sum()
            if self.entropy:
                total = total - self.entropy * batch.entropy.sum()
        return LossOutput(total, sums, maxima)

    def _over_answers(self, batch: Predictions, log_ratio: Tensor) -> Tensor:
        if self.ratio == "token":
            return log_ratio
        whole = batch.by_document(log_ratio)
        return batch.spread(whole / batch.sizes.clamp(min=1) if self.ratio == "sequence" else whole)

    def _surrogate(self, batch: Predictions, ratio: Tensor) -> Tensor:
        advantages = batch.columns["advantages"]
        if self.surrogate == "reinforce":
            return -advantages * batch.logprobs
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.surrogate == "cispo":
            return -clipped.detach() * advantages * batch.logprobs
        earned = torch.minimum(ratio * advantages, clipped * advantages)
        if self.dual_clip:
            earned = torch.where(advantages < 0, earned.maximum(self.dual_clip * advantages), earned)
        return -earned

    def _divergence(self, batch: Predictions, ratio: Tensor) -> Tensor:
        divergence = ESTIMATORS[self.kl_estimator](batch.logprobs, batch.columns["reference_logprobs"])
        return divergence * ratio if self.kl_unbiased else divergence

    def _drift(self, advantages: Tensor, ratio: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Deviation of the ratios from 1, and the number of ratios whose clipping has an effect."""
        sums, maxima = {"ratio": ratio.sum()}, {"ratio_max": _largest(ratio)}
        if self.surrogate != "reinforce":
            low = ((ratio < 1 - self.clip_low) & (advantages < 0)).float().sum()
            high = ((ratio > 1 + self.clip_high) & (advantages > 0)).float().sum()
            sums |= {"clip_share": low + high, "clip_share_low": low, "clip_share_high": high}
        if self.dual_clip:
            sums["dual_clip_share"] = ((ratio > self.dual_clip) & (advantages < 0)).float().sum()
        return sums, maxima


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Plain estimate of KL(policy | reference) per token: unbiased, of either sign."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Half the squared log ratio: low variance, slight bias; its gradient is the gradient of the divergence."""
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's low-variance, never negative estimate of KL(policy | reference) per token."""
    return _excess(reference - logprobs)


ESTIMATORS: dict[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def _excess(log_ratio: Tensor) -> Tensor:
    return log_ratio.exp() - log_ratio - 1


def _largest(values: Tensor) -> Tensor:
    """Maximum, or 0 for an empty tensor: a row may have no predictions."""
    return values.amax() if len(values) else values.new_zeros(())
