"""The policy's loss: one surrogate, told in a few words which algorithm's it is.

What algorithms do with rewards, group by group or token by token, is in the advantages and weights of the rows.
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
    """Weights for what lies between sampler and learner before anything is learned: another engine's roundings, or
    older weights. A weight is how much likelier the learner finds what was sampled, a token or a whole answer."""

    kind: Literal["truncate", "mask"] = "truncate"
    """What happens to a weight outside of `floor` and `cap`: it becomes the bound, or 0."""
    level: Literal["token", "sequence"] = "token"
    cap: float = 3.0
    floor: float = 0.0

    def weights(self, batch: Predictions, difference: Tensor) -> tuple[Tensor, Tensor]:
        """[N] learner's less sampler's log-probabilities -> [N] weights, and which of them were out of bounds."""
        whole = difference if self.level == "token" else batch.spread(batch.by_document(difference))
        ratio = whole.exp()
        within = ratio.clamp(self.floor, self.cap)
        cut = within != ratio
        return (within if self.kind == "truncate" else ratio.masked_fill(cut, 0.0)), cut


@dataclass(frozen=True)
class PolicyLoss:
    """Of the ratio between the policy's probability of a token and the one it was sampled with.

    Columns: `advantages`, `sampler_logprobs`; for `kl` `reference_logprobs`. `old_logprobs` are the learner's own
    before the step's first mini-batch: where they are there, they are what the ratio is over, and the sampler's are
    only what a correction compares them with. Without them the sampler's stand in; with a correction, the present ones:
    right where a step has one mini-batch.

    Equal log-probabilities make a ratio of exactly 1, and divergences of exactly 0.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: float = 0.0
    surrogate: Literal["clip", "cispo", "reinforce"] = "clip"
    """clip: PPO's. cispo: REINFORCE, each token times its clipped ratio. reinforce: as if the policy had sampled."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """sequence: GSPO's, the geometric mean over an answer's tokens. product: of the whole answer."""
    dual_clip: float = 0.0
    """The largest ratio that counts against a token with a negative advantage; 0: there is none."""
    kl_estimator: Estimator = "k3"
    kl_unbiased: bool = False
    """Times the ratio: the gradient of what is then estimated is that of the divergence."""
    correction: Correction | None = None
    entropy: float = 0.0
    """What a nat of the mean entropy is worth."""
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
        """How far the ratios are from 1, and how many of them are clipped where it matters."""
        sums, maxima = {"ratio": ratio.sum()}, {"ratio_max": _largest(ratio)}
        if self.surrogate != "reinforce":
            low = ((ratio < 1 - self.clip_low) & (advantages < 0)).float().sum()
            high = ((ratio > 1 + self.clip_high) & (advantages > 0)).float().sum()
            sums |= {"clip_share": low + high, "clip_share_low": low, "clip_share_high": high}
        if self.dual_clip:
            sums["dual_clip_share"] = ((ratio > self.dual_clip) & (advantages < 0)).float().sum()
        return sums, maxima


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The plain estimate of KL(policy | reference), a token: unbiased, of either sign."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Half the square: of low variance, a little biased; its gradient is that of the divergence."""
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's low-variance, never negative estimate of KL(policy | reference), a token."""
    return _excess(reference - logprobs)


ESTIMATORS: dict[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def _excess(log_ratio: Tensor) -> Tensor:
    return log_ratio.exp() - log_ratio - 1


def _largest(values: Tensor) -> Tensor:
    """0 of none: a row may predict nothing."""
    return values.amax() if len(values) else values.new_zeros(())
