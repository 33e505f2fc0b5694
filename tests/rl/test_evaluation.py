from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.graders import Score
from rondo.rl.evaluation import bootstrap, pass_at, pass_metrics, wilson
from rondo.rl.rollout.types import Rollout, SampleGroup, reward_metrics
from rondo.rl.tasks.types import Problem


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    right = [True] * c + [False] * (n - c)
    share = sum(any(picked) for picked in combinations(right, k)) / comb(n, k)
    assert pass_at(k, n, c) == pytest.approx(share)


@pytest.mark.parametrize(
    ("passed", "asked", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_newcombes(passed: int, asked: int, low: float, high: float) -> None:
    """Of Newcombe's comparison of intervals, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson(passed, asked) == pytest.approx((low, high), abs=5e-5)


def test_the_bootstrap_covers_the_mean_as_the_normal_interval_does() -> None:
    values = list(np.random.default_rng(3).random(400))
    mean, half = float(np.mean(values)), 1.96 * float(np.std(values)) / 20
    low, high = bootstrap(values)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.2 * half)
    assert (low, high) == bootstrap(values)


def group(*scores: Score) -> SampleGroup:
    return SampleGroup(
        Problem("?", {}), [1], [Rollout([1], [True], [0.0], [0], "", "stop", one) for one in scores]
    )


RIGHT, WRONG, FAILED = (
    Score("ok", 0.9, {"correct": 1.0}),
    Score("ok", 0.5, {"correct": 0.0}),
    Score("error", 0.0),
)


def test_what_counts_as_passed() -> None:
    groups = [group(RIGHT, WRONG), group(FAILED, WRONG), group(RIGHT, RIGHT), group()]
    found = pass_metrics(groups, [1, 2], 1.0)
    assert found["pass@1"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert found["pass@2"] == pytest.approx(2 / 3)
    assert found["pass@1_low"] <= found["pass@1"] <= found["pass@1_high"]
    assert pass_metrics([group(Score("ok", 0.7))], [1], 0.6)["pass@1"] == 1.0
    assert pass_metrics([group(Score("ok", 0.7))], [1], 0.8)["pass@1"] == 0.0


def test_parts_are_told_whoever_has_them() -> None:
    """Also where the first sample, an episode that came to a bound, has none."""
    found = reward_metrics([group(Score("ok", 0.0), RIGHT, WRONG, FAILED)])
    assert found == {"reward": pytest.approx(1.4 / 3), "unjudged": 1.0, "reward/correct": 0.5}
