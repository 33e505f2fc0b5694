"""From rewards to per-token advantages and weights: plain arithmetic, no tensors."""

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
    """[P, S] -> [P, S]: each reward beside its group's mean. "std" is GRPO; "mean" is Dr. GRPO, undivided.

    A reward that is NaN (its grader failed) counts neither in the mean nor in the deviation, and gets advantage 0.
    """
    known = ~np.isnan(rewards)
    count = known.sum(1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    centred = np.where(known, rewards - filled.sum(1, keepdims=True) / np.maximum(count, 1), 0.0)
    # The mean of equal numbers is off by a rounding, which the division below would blow up.
    centred[~teaching(rewards)] = 0.0
    if normalise == "mean":
        return centred
    deviation = np.sqrt((centred**2).sum(1, keepdims=True) / np.maximum(count - 1, 1))
    return np.asarray(centred / (deviation + EPSILON))


def leave_one_out(rewards: Floats) -> Floats:
    """[P, S] -> [P, S]: each reward beside the mean of its group's others (RLOO). As above without a reward."""
    count = (~np.isnan(rewards)).sum(1, keepdims=True)
    return np.asarray(group_advantages(rewards, "mean") * count / np.maximum(count - 1, 1))


def teaching(rewards: Floats) -> Mask:
    """[P, S] -> [P]: of which groups the samples have earned different rewards. The others have no advantages, and
    are what DAPO's dynamic sampling draws again."""
    known = ~np.isnan(rewards)
    lowest, highest = np.where(known, rewards, np.inf).min(1), np.where(known, rewards, -np.inf).max(1)
    return np.asarray(highest > lowest)


def overlong_penalties(lengths: Sequence[int], longest: int, share: float, scale: float = 1.0) -> Floats:
    """What DAPO adds to the reward of each answer: nothing up to the last `share` of `longest` tokens, then less and
    less, -`scale` at the end."""
    if not share:
        return np.zeros(len(lengths))
    soft = share * longest
    over = np.clip((np.asarray(lengths, np.float64) - (longest - soft)) / soft, 0.0, 1.0)
    return np.asarray(-scale * over)


def token_weights(lengths: Sequence[int], aggregate: Aggregate = "token", longest: int = 0) -> list[float]:
    """The weight of each of a sample's tokens in a loss that is divided by the number of all tokens.

    "token": all tokens count alike (DAPO). "sequence": all samples count alike, whatever their length (GRPO's paper).
    "constant": samples are divided by `longest`, the most tokens they could have (Dr. GRPO).
    """
    tokens = sum(lengths)
    samples = sum(1 for length in lengths if length)
    if aggregate == "token" or not tokens:
        return [1.0] * len(lengths)
    if aggregate == "constant":
        return [tokens / (len(lengths) * longest)] * len(lengths)
    return [tokens / (samples * length) if length else 0.0 for length in lengths]


def divergences(logprobs: ArrayLike, reference: ArrayLike, estimator: Literal["k1", "k2", "k3"]) -> Floats:
    """[T] each -> [T]: estimates of KL(policy | reference), a token, to be taken from the reward."""
    difference = np.asarray(logprobs, np.float64) - np.asarray(reference, np.float64)
    if estimator == "k1":
        return np.asarray(difference)
    return np.asarray(difference**2 / 2 if estimator == "k2" else np.expm1(-difference) + difference)


def returns(rewards: Floats, gamma: float = 1.0) -> Floats:
    """[T] -> [T]: what each token and those after it earn, later rewards discounted."""
    found, later = [], 0.0
    for reward in reversed(rewards.tolist()):
        later = reward + gamma * later
        found.append(later)
    return np.array(found[::-1], np.float64)


def gae(rewards: Floats, values: Floats, gamma: float = 1.0, lam: float = 0.95) -> tuple[Floats, Floats]:
    """[T] rewards and the critic's values of what stood before each token -> [T] advantages and returns, by generalised
    advantage estimation. Nothing follows the last token."""
    rewards, values = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    surprises = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    advantages = returns(surprises, gamma * lam)
    return advantages, advantages + values


def whitened(parts: Sequence[Floats]) -> list[Floats]:
    """All numbers together get mean 0 and deviation 1; equal ones become 0. Sums are exact, so that neither the order
    of the parts nor how they were cut changes a bit."""
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
    """A list of P*S arrays, one number a token and 0 where the policy did not choose it."""

    advantages: list[Floats]
    returns: list[Floats] | None = None
    """What the critic is to have said."""


def token_advantages(
    config: RlConfig,
    rewards: Floats,
    sampled: Sequence[Sequence[bool]],
    *,
    kl: float = 0.0,
    divergences: Sequence[Floats] | None = None,
    values: Sequence[Floats] | None = None,
) -> TokenAdvantages:
    """Of rewards [P, S], NaN where nobody judged: such a sample has no advantages. `sampled` says of each token of the
    P*S samples whether the policy chose it; `divergences` and `values` have a number for each token too, and are not
    looked at where it did not. `kl` is what a divergence costs where it is in the reward."""
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
    """A token's own rewards, and the answer's with its last token."""
    if len(rewards):
        rewards[-1] += 0.0 if math.isnan(total) else total
    return rewards


def _placed(values: Floats, mask: Mask) -> Floats:
    whole = np.zeros(len(mask))
    whole[mask] = values
    return whole


@dataclass(frozen=True)
class AdaptiveKl:
    """What a divergence costs, steered so that it comes to be `target` nats a token (Ziegler et al., 2019)."""

    coefficient: float
    """All of its state."""
    target: float
    horizon: float = 10.0
    """In steps. Each changes the coefficient by a fifth of one over it at most."""

    def after(self, measured: float) -> AdaptiveKl:
        """The next step's, from a step's mean divergence."""
        if not self.target or not math.isfinite(measured):
            return self
        error = min(max(measured / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error / self.horizon))
