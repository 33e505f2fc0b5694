"""Figures of a step's rollouts, beside numbers worked out by hand and by scipy-free formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl._rollouts import asked, judged, said
from rondo.graders import Score
from rondo.rl.record.metrics import group_metrics

GROUPS = [
    asked(
        "abc",
        [said("cba", judged(1.0, correct=1.0, format=1.0)), said("c", judged(0.5, correct=0.0, format=1.0))],
    ),
    asked("xy", [said("sorry", Score("timeout", 0.0)), said("yx", judged(0.0, correct=0.0, format=0.0))]),
]


def test_rewards_by_part() -> None:
    found = group_metrics(GROUPS, 3)
    assert (found["reward"], found["reward_min"], found["reward_max"]) == (0.5, 0.0, 1.0)
    assert found["reward_std"] == pytest.approx(np.std([1.0, 0.5, 0.0]))
    assert found["reward/correct"] == pytest.approx(1 / 3)
    assert found["reward_std/format"] == pytest.approx(np.std([1, 1, 0]))
    assert (found["unjudged"], found["unjudged_share"]) == (1.0, 0.25)
    assert (found["failed/timeout"], found["failed/error"]) == (1.0, 0.0)


def test_where_nothing_is_judged_there_is_no_reward() -> None:
    found = group_metrics([asked("q", [said("a", Score("error", 0.0)), said("b")])], 3)
    assert not [name for name in found if name.startswith("reward")]
    assert "equal_groups" not in found
    assert (found["unjudged_share"], found["failed/error"]) == (1.0, 1.0)
    assert group_metrics([], 3) == {}
    assert group_metrics([asked("q", [])], 3) == {}


def test_lengths_and_ends() -> None:
    ends = ("stop", "length", "turns", "stop")
    samples = [
        said("a" * n, judged(0.0), finish_reason=end) for n, end in zip((1, 2, 3, 10), ends, strict=True)
    ]
    found = group_metrics([asked("q", samples)], 3)
    assert (found["answer_tokens"], found["answer_tokens_p50"], found["answer_tokens_max"]) == (
        4.0,
        2.5,
        10.0,
    )
    assert found["answer_tokens_p99"] == pytest.approx(np.percentile([1, 2, 3, 10], 99))
    assert found["truncated"] == 0.5


def test_a_tools_tokens_count_nowhere() -> None:
    sample = said(
        "abcd",
        judged(1.0),
        sampled=[True, False, False, True],
        versions=[3, 3, 3, 1],
        logprobs=[-1, 0, 0, -3],
    )
    found = group_metrics([asked("q", [sample])], 3)
    assert found["answer_tokens"] == 2.0
    assert found["sampled_entropy"] == 2.0
    assert (found["stale/0"], found["stale/2"]) == (0.5, 0.5)


def test_versions_behind() -> None:
    samples = [said("ab", judged(0.0), versions=[9, 7]), said("cd", judged(0.0), versions=[10, 0])]
    found = group_metrics([asked("q", samples)], 10)
    assert {name: found[name] for name in found if name.startswith("stale")} == {
        "stale": pytest.approx((1 + 3 + 0 + 10) / 4),
        "stale_max": 10.0,
        **{f"stale/{n}": 0.25 if n in (0, 1, 3) else 0.0 for n in range(8)},
        "stale/8+": 0.25,
    }
    assert found["weight_version"] == 10.0


def test_equal_answers_within_a_group_and_over_problems() -> None:
    groups = [
        asked("a", [said("yes", judged(1.0)), said("yes", judged(1.0)), said("no", judged(0.0))]),
        asked("b", [said("yes ", judged(1.0)), said("no", judged(0.0)), said("maybe", judged(0.0))]),
        asked("c", [said("no", judged(1.0)), said("no", judged(1.0)), said("no", judged(1.0))]),
    ]
    found = group_metrics(groups, 3)
    assert found["duplicated"] == pytest.approx((1 / 3 + 0 + 2 / 3) / 3)
    assert found["same_answer"] == pytest.approx(2 / 3)
    assert "same_answer" not in group_metrics(groups[:1] * 4, 3), "one problem cannot have another's answer"


def test_groups_that_teach() -> None:
    def of(*values: float) -> list[object]:
        return [said("a", judged(0.1 + value / 2, correct=value)) for value in values]

    groups = [asked(str(i), each) for i, each in enumerate((of(0, 0), of(1, 1), of(1, 0), of(0, 1)))]  # type: ignore[arg-type]
    found = group_metrics(groups, 3)
    assert (found["equal_groups"], found["solve_none"], found["solve_all"]) == (0.5, 0.25, 0.25)
    whole = [asked("q", [said("a", judged(1.0)), said("b", judged(1.0))])]
    assert group_metrics(whole, 3)["solve_all"] == 1.0, "without a part that says so the reward does"


@given(st.lists(st.lists(st.tuples(st.text(max_size=5), st.floats(0, 1)), max_size=4), max_size=5))
def test_shares_are_shares(table: list[list[tuple[str, float]]]) -> None:
    groups = [
        asked(str(i), [said(text, judged(value)) for text, value in row]) for i, row in enumerate(table)
    ]
    found = group_metrics(groups, 5)
    shares = (
        "unjudged_share",
        "truncated",
        "duplicated",
        "same_answer",
        "equal_groups",
        "solve_none",
        "solve_all",
    )
    assert all(0 <= found[name] <= 1 for name in shares if name in found)
    assert all(np.isfinite(value) for value in found.values())
    if "stale" in found:
        assert sum(value for name, value in found.items() if name.startswith("stale/")) == pytest.approx(1.0)
