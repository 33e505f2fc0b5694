import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rondo.rl.advantages import group_advantages, token_weights

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
