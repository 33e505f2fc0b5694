"""Per-token advantages and loss weights from rewards: plain arithmetic, no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rondo.rl.algorithms import Aggregate
from rondo.rl.config import RlConfig

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

EPSILON = 1e-4


def group_advantages(rewards: Floats, normalise: Literal["std", "mean"] = "std") -> Floats:
    """[P, S] -> [P, S]: each reward relative to its group's mean. "std" is GRPO; "mean" is Dr. GRPO, without
    division.

    A NaN reward (failed grader) is excluded from mean and deviation and has advantage 0.
    """
    known = ~np.isnan(rewards)
    count = known.sum(1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    centred = np.where(known, rewards - filled.sum(1, keepdims=True) / np.maximum(count, 1), 0.0)
    # The mean of equal numbers has a rounding error, which the division below would amplify.
    centred[~teaching(rewards)] = 0.0
    if normalise == "mean":
        return centred
    deviation = np.sqrt((centred**2).sum(1, keepdims=True) / np.maximum(count - 1, 1))
    return np.asarray(centred / (deviation + EPSILON))


def leave_one_out(rewards: Floats) -> Floats:
    """[P, S] -> [P, S]: each reward relative to the mean of the other rewards of its group (RLOO). NaN rewards are
    handled as in `group_advantages`.
    """
    count = (~np.isnan(rewards)).sum(1, keepdims=True)
    return np.asarray(group_advantages(rewards, "mean") * count / np.maximum(count - 1, 1))


def teaching(rewards: Floats) -> Mask:
    """[P, S] -> [P]: whether a group's samples have different rewards. Other groups have no advantages; DAPO's
    dynamic sampling resamples them.
    """
    known = ~np.isnan(rewards)
    lowest, highest = np.where(known, rewards, np.inf).min(1), np.where(known, rewards, -np.inf).max(1)
    return np.asarray(highest > lowest)


def overlong_penalties(lengths: Sequence[int], longest: int, share: float, scale: float = 1.0) -> Floats:
    """DAPO's soft overlong penalty of each sample: 0 up to the last `share` of `longest` tokens, then linear down to
    -`scale` at `longest`.
    """
    if not share:
        return np.zeros(len(lengths))
    soft = share * longest
    over = np.clip((np.asarray(lengths, np.float64) - (longest - soft)) / soft, 0.0, 1.0)
    return np.asarray(-scale * over)


def token_weights(lengths: Sequence[int], aggregate: Aggregate = "token", longest: int = 0) -> list[float]:
    """The weight of each of a sample's tokens in a loss that is divided by the number of all tokens.

    "token": all tokens have the same weight (DAPO). "sequence": all samples have the same weight, for any sample
    length (the GRPO paper). "constant": samples are divided by `longest`, the maximum number of tokens (Dr. GRPO).
    """
    tokens = sum(lengths)
    samples = sum(1 for length in lengths if length)
    if aggregate == "token" or not tokens:
        return [1.0] * len(lengths)
    if aggregate == "constant":
        return [tokens / (len(lengths) * longest)] * len(lengths)
    return [tokens / (samples * length) if length else 0.0 for length in lengths]


def divergences(logprobs: ArrayLike, reference: ArrayLike, estimator: Literal["k1", "k2", "k3"]) -> Floats:
    """[T] each -> [T]: per-token estimates of KL(policy | reference), to be subtracted from the reward."""
    difference = np.asarray(logprobs, np.float64) - np.asarray(reference, np.float64)
    if estimator == "k1":
        return np.asarray(difference)
    return np.asarray(difference**2 / 2 if estimator == "k2" else np.expm1(-difference) + difference)


def returns(rewards: Floats, gamma: float = 1.0) -> Floats:
    """[T] -> [T]: the discounted return of each token."""
    found, later = [], 0.0
    for reward in reversed(rewards.tolist()):
        later = reward + gamma * later
        found.append(later)
    return np.array(found[::-1], np.float64)


def gae(rewards: Floats, values: Floats, gamma: float = 1.0, lam: float = 0.95) -> tuple[Floats, Floats]:
    """[T] rewards and [T] values before each token -> [T] advantages and [T] returns by generalized advantage
    estimation (GAE). The value after the last token is 0.
    """
    rewards, values = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    surprises = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    advantages = returns(surprises, gamma * lam)
    return advantages, advantages + values


def whitened(parts: Sequence[Floats]) -> list[Floats]:
    """All parts together normalized to mean 0 and deviation 1; equal numbers become 0. Sums are exact, so that the
    result is bitwise independent of the order and the split of the parts.
    """
    if not any(len(part) for part in parts):
        return list(parts)
    together = np.concatenate(parts).astype(np.float64)
    if together.min() == together.max():
        return [np.zeros(len(part)) for part in parts]
    mean = math.fsum(together.tolist()) / len(together)
    square = math.fsum(((together - mean) ** 2).tolist()) / len(together)
    return [(part - mean) / math.sqrt(square + 1e-8) for part in parts]


@dataclass(frozen=True)
class TokenAdvantages:
    """A list of P*S arrays with one number per token, 0 for tokens that the policy did not sample."""

    advantages: list[Floats]
    returns: list[Floats] | None = None
    """Targets of the critic."""


def token_advantages(
    config: RlConfig,
    rewards: Floats,
    sampled: Sequence[Sequence[bool]],
    *,
    kl: float = 0.0,
    divergences: Sequence[Floats] | None = None,
    values: Sequence[Floats] | None = None,
) -> TokenAdvantages:
    """Advantages from rewards [P, S]. A sample with a NaN reward has no advantages.

    `sampled` marks the tokens of the P*S samples that the policy sampled. `divergences` and `values` have one number
    per token; entries of other tokens are ignored. `kl` is the coefficient of the divergence if it is part of the
    reward.
    """
    masks = [np.asarray(mask, bool) for mask in sampled]
    judged = (~np.isnan(rewards)).ravel()
    costs = [np.zeros(mask.sum()) for mask in masks]
    if config.kl_in == "reward" and kl:
        if divergences is None:
            raise ValueError("kl_in is reward: the divergences of the tokens are needed")
        costs = [kl * np.asarray(d, np.float64)[mask] for d, mask in zip(divergences, masks, strict=True)]
    targets: list[Floats] | None = None
    if config.advantage in ("group", "leave_one_out"):
        earned = rewards - np.array([cost.sum() for cost in costs]).reshape(rewards.shape)
        found = [np.full(len(c), a) for c, a in zip(costs, _of_answers(config, earned).ravel(), strict=True)]
    else:
        earned = [_at_the_end(-cost, total) for cost, total in zip(costs, rewards.ravel(), strict=True)]
        found, targets = _of_tokens(config, earned, masks, values)
    if config.normalise == "batch":
        spread = iter(whitened([part for part, known in zip(found, judged, strict=True) if known]))
        found = [next(spread) if known else part for part, known in zip(found, judged, strict=True)]
    found = [part if known else np.zeros(len(part)) for part, known in zip(found, judged, strict=True)]
    return TokenAdvantages(
        [_placed(part, mask) for part, mask in zip(found, masks, strict=True)],
        None if targets is None else [_placed(p, mask) for p, mask in zip(targets, masks, strict=True)],
    )


def _of_answers(config: RlConfig, earned: Floats) -> Floats:
    if config.advantage == "leave_one_out":
        return leave_one_out(earned)
    return group_advantages(earned, "std" if config.normalise == "std" else "mean")


def _of_tokens(
    config: RlConfig, earned: Sequence[Floats], masks: Sequence[Mask], values: Sequence[Floats] | None
) -> tuple[list[Floats], list[Floats] | None]:
    if config.advantage == "returns":
        return [returns(each, config.gamma) for each in earned], None
    if values is None:
        raise ValueError("advantage is gae: the critic's values of the tokens are needed")
    pairs = [
        gae(each, np.asarray(value, np.float64)[mask], config.gamma, config.gae_lambda)
        for each, value, mask in zip(earned, values, masks, strict=True)
    ]
    return [advantages for advantages, _ in pairs], [targets for _, targets in pairs]


def _at_the_end(rewards: Floats, total: float) -> Floats:
    """The token rewards with the sample's reward added to the last token."""
    if len(rewards):
        rewards[-1] += 0.0 if math.isnan(total) else total
    return rewards


def _placed(values: Floats, mask: Mask) -> Floats:
    whole = np.zeros(len(mask))
    whole[mask] = values
    return whole


@dataclass(frozen=True)
class AdaptiveKl:
    """KL coefficient adapted so that the measured divergence approaches `target` nats per token (Ziegler et al.,
    2019).
    """

    coefficient: float
    """The whole state."""
    target: float
    horizon: float = 10.0
    """Steps; each step changes the coefficient by at most a fifth of 1 / `horizon`."""

    def after(self, measured: float) -> AdaptiveKl:
        """The coefficient of the next step, from this step's mean divergence."""
        if not self.target or not math.isfinite(measured):
            return self
        error = min(max(measured / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error / self.horizon))
