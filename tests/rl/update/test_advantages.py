import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rondo.rl.config import RlConfig
from rondo.rl.update.advantages import (
    AdaptiveKl,
    divergences,
    gae,
    group_advantages,
    leave_one_out,
    overlong_penalties,
    returns,
    teaching,
    token_advantages,
    token_weights,
    whitened,
)
from rondo.train.losses.policy import ESTIMATORS

rewards = arrays(np.float64, (5, 4), elements=st.floats(-3, 3))


@given(rewards)
def test_a_group_sums_to_nothing_and_keeps_its_order(given_rewards: np.ndarray) -> None:
    for kind in ("std", "mean"):
        advantages = group_advantages(given_rewards, kind)  # type: ignore[arg-type]
        assert np.allclose(advantages.sum(1), 0, atol=1e-6)
        order = np.argsort(given_rewards, 1)
        assert np.all(np.diff(np.take_along_axis(advantages, order, 1), axis=1) >= 0)


def test_grpo_divides_by_the_deviation_and_dr_grpo_does_not() -> None:
    group = np.array([[1.0, 0.0, 0.0, 1.0]])
    assert np.allclose(group_advantages(group, "mean"), [[0.5, -0.5, -0.5, 0.5]])
    deviation = np.std(group, ddof=1)
    assert np.allclose(group_advantages(group), (group - 0.5) / (deviation + 1e-4))


def test_equal_rewards_teach_nothing() -> None:
    assert not group_advantages(np.full((2, 3), 0.7)).any()


def test_a_sample_nobody_judged_counts_for_nothing() -> None:
    with_gap = group_advantages(np.array([[1.0, 0.0, np.nan, 0.0]]))
    without = group_advantages(np.array([[1.0, 0.0, 0.0]]))
    assert with_gap[0, 2] == 0
    assert np.allclose(with_gap[0, [0, 1, 3]], without[0])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_weights_turn_the_token_mean_into_the_wanted_mean(lengths: list[int]) -> None:
    if not sum(lengths):
        return
    tokens = sum(lengths)
    assert token_weights(lengths) == [1.0] * len(lengths)
    by_sequence = token_weights(lengths, "sequence")
    answered = [(w, n) for w, n in zip(by_sequence, lengths, strict=True) if n]
    assert all(w * n / tokens == pytest.approx(1 / len(answered)) for w, n in answered)
    constant = token_weights(lengths, "constant", longest=10)
    assert all(w / tokens == pytest.approx(1 / (10 * len(lengths))) for w in constant)


def test_leave_one_out_is_each_reward_beside_the_others_mean() -> None:
    group = np.array([[1.0, 0.0, 0.5, np.nan]])
    assert np.allclose(leave_one_out(group), [[1.0 - 0.25, -0.75, 0.0, 0.0]])
    assert not leave_one_out(np.array([[1.0, np.nan]])).any()


def test_groups_teach_whose_samples_earned_different_rewards() -> None:
    table = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, np.nan], [0.5, np.nan, np.nan], [np.nan] * 3])
    assert teaching(table).tolist() == [False, True, False, False]


def test_overlong_answers_are_punished_as_dapo_does() -> None:
    """Of 20 tokens the last 5 are soft: -(length - 15) / 5."""
    found = overlong_penalties([3, 15, 16, 18, 20], 20, 0.25)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.2, -0.6, -1.0])
    assert overlong_penalties([20], 20, 0.25, 0.5).tolist() == [-0.5]
    assert not overlong_penalties([3, 20], 20, 0.0).any()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_divergences_for_the_reward_are_those_of_the_loss(estimator: str) -> None:
    draw = np.random.default_rng(0)
    one, other = draw.normal(size=(2, 20))
    theirs = ESTIMATORS[estimator](torch.from_numpy(one), torch.from_numpy(other))  # type: ignore[index]
    assert np.allclose(divergences(one, other, estimator), theirs)  # type: ignore[arg-type]
    assert not divergences(one, one, estimator).any()  # type: ignore[arg-type]


numbers = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), max_size=9)


@given(numbers, st.floats(0.5, 1), st.floats(0, 1))
def test_gae_is_the_plain_loop(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    earned, values = [np.array([step[i] for step in steps]) for i in (0, 1)]
    advantages, targets = gae(earned, values, gamma, lam)
    for t in range(len(steps)):
        wanted = 0.0
        for later in range(t, len(steps)):
            after = values[later + 1] if later + 1 < len(steps) else 0.0
            wanted += (gamma * lam) ** (later - t) * (earned[later] + gamma * after - values[later])
        assert advantages[t] == pytest.approx(wanted, abs=1e-9)
        assert targets[t] == pytest.approx(wanted + values[t], abs=1e-9)


def test_gae_at_its_ends() -> None:
    """With lambda 1 what was earned less what was expected; with 0 one step's surprise."""
    earned, values = np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.25, 1.0])
    assert gae(earned, values, 1.0, 1.0)[0].tolist() == [2.5, 2.75, 1.0]
    assert gae(earned, values, 1.0, 0.0)[0].tolist() == [-0.25, 1.75, 1.0]
    assert returns(earned, 0.5).tolist() == [1.0, 2.0, 2.0]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=40), st.randoms())
def test_whitening_does_not_depend_on_the_order_or_the_cut(
    values: list[float], source: random.Random
) -> None:
    whole = whitened([np.array(values)])[0]
    order = source.sample(range(len(values)), len(values))
    cut = source.randint(0, len(values))
    parts = [np.array([values[i] for i in part]) for part in (order[:cut], order[cut:])]
    again = np.concatenate(whitened(parts))
    assert np.array_equal(again, whole[order]), "to the last bit"
    assert whole.mean() == pytest.approx(0, abs=1e-6)
    if np.std(values) > 0.1:
        assert whole.std() == pytest.approx(1, rel=1e-4)


def test_equal_numbers_and_none_are_whitened_to_nothing() -> None:
    assert not np.concatenate(whitened([np.full(3, 0.1), np.full(4, 0.1)])).any()
    assert whitened([np.zeros(0)])[0].shape == (0,)


MASKS = [[True, True], [True, False, False, True], [True], [True, True, True]]
"""The second answer has a tool's output in it."""
REWARDS = np.array([[1.0, 0.0], [0.25, 0.75]])


def counted(rows: Sequence[np.ndarray]) -> list[float]:
    return [float(x) for row, mask in zip(rows, MASKS, strict=True) for x in row[np.array(mask)]]


def test_advantages_of_answers_are_those_of_each_of_their_tokens() -> None:
    found = token_advantages(RlConfig(), REWARDS, MASKS)
    wanted = group_advantages(REWARDS).ravel()
    assert found.returns is None
    for row, mask, advantage in zip(found.advantages, MASKS, wanted, strict=True):
        assert row.tolist() == [advantage if chosen else 0.0 for chosen in mask]


def test_a_divergence_in_the_reward_of_an_answer_is_the_sum_of_its_tokens() -> None:
    config = RlConfig(algorithm="rloo", kl=0.5)
    costs = [np.arange(len(mask)) + 1.0 for mask in MASKS]
    found = token_advantages(config, REWARDS, MASKS, kl=0.2, divergences=costs)
    earned = REWARDS - 0.2 * np.array([[3.0, 5.0], [1.0, 6.0]])
    assert [row[0] for row in found.advantages] == pytest.approx(leave_one_out(earned).ravel().tolist())
    with pytest.raises(ValueError, match="divergences"):
        token_advantages(config, REWARDS, MASKS, kl=0.2)


def test_reinforce_plus_plus_sums_what_is_still_earned_and_whitens_it() -> None:
    """The reward with the last token, and each token's divergence taken from it."""
    config = RlConfig(algorithm="reinforce++", kl=0.5)
    costs = [np.arange(len(mask)) + 1.0 for mask in MASKS]
    found = token_advantages(config, REWARDS, MASKS, kl=0.1, divergences=costs)
    by_hand = [1 - 0.3, 1 - 0.2, 0 - 0.5, 0 - 0.4, 0.25 - 0.1, 0.75 - 0.6, 0.75 - 0.5, 0.75 - 0.3]
    centred = np.array(by_hand) - np.mean(by_hand)
    assert counted(found.advantages) == pytest.approx((centred / np.std(by_hand)).tolist(), rel=1e-5)
    assert found.advantages[1][1:3].tolist() == [0.0, 0.0]


def test_the_baseline_variant_whitens_what_is_left_of_the_groups_mean() -> None:
    config = RlConfig(algorithm="reinforce++-baseline")
    found = counted(token_advantages(config, REWARDS, MASKS).advantages)
    plain = np.array([0.5, 0.5, -0.5, -0.5, -0.25, 0.25, 0.25, 0.25])
    assert found == pytest.approx(((plain - plain.mean()) / plain.std()).tolist(), rel=1e-5)


def test_ppo_asks_the_critic_at_the_tokens_that_the_policy_chose() -> None:
    config = RlConfig(algorithm="ppo", normalise="none", gamma=0.9, gae_lambda=0.8)
    values = [np.linspace(0.1, 0.9, len(mask)) for mask in MASKS]
    found = token_advantages(config, REWARDS, MASKS, values=values)
    assert found.returns is not None
    for i, mask in enumerate(MASKS):
        chosen = np.array(mask)
        earned = np.zeros(chosen.sum())
        earned[-1] = REWARDS.ravel()[i]
        advantages, targets = gae(earned, values[i][chosen], 0.9, 0.8)
        assert np.allclose(found.advantages[i][chosen], advantages)
        assert np.allclose(found.returns[i][chosen], targets)
        assert not found.advantages[i][~chosen].any()
    with pytest.raises(ValueError, match="critic"):
        token_advantages(config, REWARDS, MASKS)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce++", "reinforce++-baseline", "ppo"])
def test_a_sample_that_nobody_judged_neither_learns_nor_changes_others(algorithm: str) -> None:
    config = RlConfig(algorithm=algorithm)
    rewards = np.array([[1.0, 0.0, np.nan], [0.25, np.nan, 0.75]])
    masks = [[True] * n for n in (2, 3, 4, 1, 5, 2)]
    values = [np.full(len(mask), 0.3) for mask in masks]
    found = token_advantages(config, rewards, masks, values=values).advantages
    assert not found[2].any()
    assert not found[4].any()
    kept = [0, 1, 3, 5]
    without = token_advantages(
        config,
        np.array([[1.0, 0.0], [0.25, 0.75]]),
        [masks[i] for i in kept],
        values=[values[i] for i in kept],
    )
    for i, wanted in zip(kept, without.advantages, strict=True):
        assert np.allclose(found[i], wanted)


def test_the_adaptive_coefficient_is_zieglers() -> None:
    """1 + 0.1 * clip(measured / target - 1, -0.2, 0.2) a step."""
    control = AdaptiveKl(0.2, target=0.05)
    assert control.after(0.055).coefficient == pytest.approx(0.2 * 1.01)
    assert control.after(5.0).coefficient == pytest.approx(0.2 * 1.02)
    assert control.after(0.0).coefficient == pytest.approx(0.2 * 0.98)
    assert control.after(0.05) == control
    assert control.after(float("nan")) == control
    assert AdaptiveKl(0.2, target=0.0).after(5.0).coefficient == 0.2
    resumed = AdaptiveKl(control.after(5.0).coefficient, target=0.05)
    assert resumed.after(0.01) == control.after(5.0).after(0.01)


def test_the_adaptive_coefficient_finds_its_target() -> None:
    """Where the divergence falls as its price rises."""
    control = AdaptiveKl(0.01, target=0.02, horizon=1.0)
    for _ in range(200):
        control = control.after(0.001 / control.coefficient)
    assert 0.001 / control.coefficient == pytest.approx(0.02, rel=0.05)
