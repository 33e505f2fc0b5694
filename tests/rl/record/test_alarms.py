"""Signs in made-up histories: each alarm comes where it should, says since when, and keeps quiet elsewhere."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.rl.record.alarms import Alarm, Alarms
from rondo.rl.record.change_detection import levels
from rondo.rl.record.config import AlarmsConfig

CONFIG = AlarmsConfig()
Row = dict[str, float]


def noise(seed: int) -> Callable[[float], float]:
    random = np.random.default_rng(seed)
    return lambda scale: float(random.normal(0, scale))


def ramp(step: int, begin: int, low: float, high: float, steps: int = 15) -> float:
    """From low to high, from step `begin` on."""
    return low + (high - low) * min(max((step - begin) / steps, 0.0), 1.0)


def healthy(step: int, jitter: Callable[[float], float]) -> Row:
    """It learns: both parts rise, answers grow a little, the entropy falls with the problems that are left."""
    right = ramp(step, 0, 0.1, 0.95, 80)
    return {
        "reward": right + jitter(0.02),
        "reward_std": max(right * (1 - right), 0.02) ** 0.5,
        "reward/correct": right + jitter(0.03),
        "reward_std/correct": max(right * (1 - right), 0.02) ** 0.5,
        "reward/format": min(ramp(step, 0, 0.5, 0.98, 30) + jitter(0.02), 1.0),
        "reward_std/format": 0.3,
        "answer_tokens": ramp(step, 0, 20, 30, 100) + jitter(1),
        "truncated": 0.0,
        "duplicated": ramp(step, 0, 0.1, 0.8, 80),
        "same_answer": 0.1 + abs(jitter(0.03)),
        "sampler_kl": 2e-7 + abs(jitter(1e-7)),
        "sampled_entropy": ramp(step, 0, 1.2, 0.1, 80) + abs(jitter(0.02)),
        "equal_groups": ramp(step, 40, 0.2, 1.0, 60),
        "solve_all": ramp(step, 0, 0.0, 0.93, 80),
        "unjudged_share": 0.0,
    }


def told(of: Callable[[int, Callable[[float], float]], Row], steps: int = 120, seed: int = 0) -> list[Alarm]:
    alarms, jitter = Alarms(CONFIG), noise(seed)
    return [alarm for step in range(1, steps + 1) for alarm in alarms.check(step, of(step, jitter))]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_said_of_a_job_that_learns(seed: int) -> None:
    assert told(healthy, 150, seed) == []


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_said_of_a_job_that_only_wavers(seed: int) -> None:
    def flat(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {
            "reward": 0.5 + jitter(0.1),
            "reward_std": 0.4,
            "reward/correct": 0.5 + jitter(0.15),
            "reward_std/correct": 0.5,
            "reward/format": 0.5 + jitter(0.15),
            "reward_std/format": 0.5,
            "answer_tokens": 20 + jitter(4),
            "sampled_entropy": 1.0 + jitter(0.2),
            "equal_groups": 0.4 + jitter(0.1),
        }

    assert told(flat, 200, seed) == []


def only(of: Callable[[int, Callable[[float], float]], Row], kind: str, begin: int) -> Alarm:
    """That alarm alone, once, since about that step, and for every seed."""
    for seed in range(5):
        found = told(of, 150, seed)
        assert [alarm.kind for alarm in found] == [kind], (seed, found)
        [alarm] = found
        assert begin <= alarm.step <= begin + 45
        assert abs(alarm.since - begin) <= 2 * CONFIG.window, alarm
        assert alarm.saw
        assert alarm.advice
    return alarm


def test_a_part_that_is_bought_with_another() -> None:
    """From step 60 on the format is all that is cared for, and the total still rises."""

    def hacked(step: int, jitter: Callable[[float], float]) -> Row:
        right = ramp(step, 0, 0.1, 0.5, 40) if step < 60 else ramp(step, 60, 0.5, 0.1)
        neat = ramp(step, 60, 0.3, 0.95)
        return healthy(1, jitter) | {
            "reward": 0.3 * right + 0.7 * neat + jitter(0.02),
            "reward_std": 0.3,
            "reward/correct": right + jitter(0.03),
            "reward_std/correct": 0.45,
            "reward/format": neat + jitter(0.03),
            "reward_std/format": 0.4,
        }

    alarm = only(hacked, "hacking", 60)
    assert "reward/format rose from" in alarm.saw
    assert "while reward/correct fell from 0.5" in alarm.saw
    assert "--where 'format>=" in alarm.advice


def test_a_part_that_falls_with_the_total_is_no_hacking() -> None:
    def worse(step: int, jitter: Callable[[float], float]) -> Row:
        neat, right = ramp(step, 60, 0.3, 0.8), ramp(step, 60, 0.7, 0.1)
        return healthy(1, jitter) | {
            "reward": 0.2 * neat + 0.8 * right + jitter(0.02),
            "reward_std": 0.3,
            "reward/correct": right + jitter(0.03),
            "reward/format": neat + jitter(0.03),
        }

    only(worse, "reward", 60)


def test_answers_that_grow_for_nothing() -> None:
    def longer(step: int, jitter: Callable[[float], float]) -> Row:
        grown = ramp(step, 50, 40, 200)
        return healthy(1, jitter) | {"answer_tokens": grown + jitter(3), "truncated": ramp(step, 50, 0, 0.4)}

    assert "are cut off" in only(longer, "length", 50).saw


def test_answers_that_grow_and_earn_more() -> None:
    def thinks(step: int, jitter: Callable[[float], float]) -> Row:
        right = ramp(step, 50, 0.2, 0.8)
        grown = {"answer_tokens": ramp(step, 50, 40, 200) + jitter(3)}
        return healthy(1, jitter) | grown | {"reward": right + jitter(0.02), "reward_std": 0.4}

    assert told(thinks) == []


def test_the_same_answer_to_everything() -> None:
    def parrot(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {"same_answer": ramp(step, 40, 0.1, 0.9)}

    assert "of the problems get the same answer" in only(parrot, "duplicates", 40).saw


def test_long_answers_that_are_equal_are_odd_and_short_ones_are_not() -> None:
    def again(tokens: float) -> Callable[[int, Callable[[float], float]], Row]:
        return lambda step, jitter: (
            healthy(1, jitter)
            | {
                "duplicated": ramp(step, 40, 0.0, 0.8),
                "answer_tokens": tokens + jitter(1),
            }
        )

    assert "of a group's answers" in only(again(300), "duplicates", 40).saw
    assert told(again(8)) == []


def test_sampler_and_learner_that_part() -> None:
    def apart(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {
            "sampler_kl": 1e-5 * 10 ** ramp(step, 60, 0, 2.5, 40) * (1 + abs(jitter(0.1)))
        }

    assert "grew from" in only(apart, "mismatch", 60).saw
    growth_aside, jitter = Alarms(AlarmsConfig(mismatch_growth=0)), noise(0)
    assert not [alarm for step in range(1, 121) for alarm in growth_aside.check(step, apart(step, jitter))]

    def far(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {"sampler_kl": 0.05 + abs(jitter(0.002))}

    [alarm] = told(far)
    assert (alarm.kind, alarm.step, alarm.since) == ("mismatch", 20, 1)
    assert "above 0.01" in alarm.saw


def test_entropy_that_is_gone_before_the_problems_are_solved() -> None:
    def sure(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {"entropy": ramp(step, 50, 1.0, 0.05) + abs(jitter(0.01))}

    only(sure, "entropy", 50)
    assert told(lambda step, jitter: sure(step, jitter) | {"solve_all": 0.97}) == []


def test_a_reward_that_collapses() -> None:
    def unlearned(step: int, jitter: Callable[[float], float]) -> Row:
        earned = ramp(step, 0, 0.2, 0.8, 40) if step < 70 else ramp(step, 70, 0.8, 0.1)
        return healthy(1, jitter) | {"reward": earned + jitter(0.03), "reward_std": 0.4}

    assert "fell from 0.8" in only(unlearned, "reward", 70).saw


def test_nothing_to_learn_from() -> None:
    def silent(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {"equal_groups": 1.0, "solve_all": 0.0}

    [alarm] = told(silent)
    assert (alarm.kind, alarm.since) == ("no_signal", 1)
    assert told(lambda step, jitter: silent(step, jitter) | {"solve_all": 1.0}) == []


def test_graders_that_fail() -> None:
    """A step that nobody judged says enough; a single sample that was not judged says nothing."""

    def down(step: int, jitter: Callable[[float], float]) -> Row:
        failed = {"unjudged_share": 1.0, "failed/timeout": 64.0, "failed/error": 0.0}
        single = {"unjudged_share": 1 / 16}
        return healthy(1, jitter) | (failed if step >= 30 else single if step % 10 == 0 else {})

    [alarm] = told(down)
    assert (alarm.kind, alarm.step, alarm.since) == ("graders", 30, 30)
    assert "100% of the samples were not judged: 64 graders took too long" in alarm.saw


def test_an_alarm_is_told_once_and_again_after_it_was_over() -> None:
    def twice(step: int, jitter: Callable[[float], float]) -> Row:
        return healthy(1, jitter) | {"unjudged_share": 0.5 if step % 50 >= 40 else 0.0}

    assert [(alarm.kind, alarm.since) for alarm in told(twice, 100)] == [("graders", 40), ("graders", 90)]


def test_who_goes_on_from_a_checkpoint_stands_where_he_stood() -> None:
    jitter = noise(3)

    def row(step: int) -> Row:
        return {"step": step, **healthy(1, jitter), "unjudged_share": 0.5 if step % 50 >= 40 else 0.0}

    rows = [row(step) for step in range(1, 120)]
    whole = Alarms(CONFIG)
    for at, each in enumerate(rows, 1):
        whole.check(int(each["step"]), each)
        if at % 9 == 0:
            held_out: list[Mapping[str, float]] = [{"step": 0, "held_out/reward": 0.5}]
            assert Alarms.after(CONFIG, held_out + rows[:at]).standing == whole.standing


def test_each_can_be_turned_off() -> None:
    off = {name: 0.0 for name in AlarmsConfig.model_fields if name not in ("window", "certainty")}
    alarms, jitter = Alarms(AlarmsConfig(**off)), noise(0)
    wrong = {
        "unjudged_share": 1.0,
        "sampler_kl": 9.0,
        "equal_groups": 1.0,
        "solve_all": 0.0,
        "same_answer": 1.0,
    }
    found = [alarms.check(step, healthy(200 - step, jitter) | wrong) for step in range(1, 120)]
    assert not any(found)


def test_metrics_that_are_missing_or_no_numbers_do_no_harm() -> None:
    assert told(lambda step, jitter: {}) == []
    assert told(lambda step, jitter: {name: float("nan") for name in healthy(1, jitter)}) == []


def test_one_odd_step_moves_nothing() -> None:
    rows = [{"step": step, "x": 1.0 + 0.01 * (step % 3)} for step in range(1, 41)]
    rows[35]["x"] = 1e6
    found = levels(rows, "x", 10, 4.0)
    assert found is not None
    assert found.now < 1.03
    assert found.rises(0.001) is None


@settings(max_examples=30)
@given(st.integers(20, 60), st.floats(-1e3, 1e3), st.floats(0.5, 100), st.integers(3, 12))
def test_a_step_up_is_found_where_it_is(at: int, low: float, by: float, window: int) -> None:
    rows = [{"step": step, "x": low + by * (step >= at)} for step in range(1, 101)]
    found = levels(rows, "x", window, 4.0)
    assert found is not None
    change = found.rises(by / 2)
    assert change is not None
    assert change.size == pytest.approx(by, rel=1e-6)
    assert abs(change.since - at) <= window
    assert found.falls(by / 2) is None
