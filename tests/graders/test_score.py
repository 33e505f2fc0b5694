"""Scores, their sums, and graders that fail."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from rondo.base.errors import ConfigError
from rondo.base.telemetry.metrics import render
from rondo.graders import Grader, Sample, Score, combine, guarded, judged

SAMPLE = Sample(prompt="2 + 2", completion="4")


@dataclass(frozen=True)
class Fixed:
    value: Score
    delay_s: float = 0.0

    async def score(self, sample: Sample) -> Score:
        await asyncio.sleep(self.delay_s)
        return self.value


@dataclass(frozen=True)
class Crash:
    error: BaseException

    async def score(self, sample: Sample) -> Score:
        raise self.error


def run(grader: Grader) -> Score:
    return asyncio.run(grader.score(SAMPLE))


def test_a_total_is_the_mean_of_the_parts() -> None:
    assert judged({"a": 1.0, "b": 0.0}).total == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_is_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Score("ok", bad)
    with pytest.raises(ValueError, match="finite"):
        Score("ok", 0.0, {"part": bad})


def test_numbers_of_numpy_become_plain_ones_and_texts_are_none() -> None:
    score = Score("ok", np.float32(0.5), {"part": np.int64(1)})  # type: ignore[arg-type, dict-item]
    assert json.dumps([score.total, score.parts]) == '[0.5, {"part": 1.0}]'
    with pytest.raises(TypeError):
        Score("ok", "0.5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="outcome is ok, timeout or error, not 'good'"):
        Score("good", 1.0)  # type: ignore[arg-type]


def test_a_weighted_sum_keeps_the_parts() -> None:
    graders = {"answer": Fixed(Score("ok", 1.0, {"found": 1.0}, "4")), "form": Fixed(Score("ok", 0.5))}
    score = run(combine(graders, {"answer": 1.0, "form": 0.2}))
    assert score.outcome == "ok"
    assert score.total == pytest.approx(1.1)
    assert score.parts == {"answer": 1.0, "answer.found": 1.0, "form": 0.5}
    assert score.detail == "answer: 4"


def test_a_sum_without_a_summand_is_no_judgement() -> None:
    good, late, broken = (
        Fixed(Score("ok", 1.0)),
        Fixed(Score("timeout", 0.0)),
        Fixed(Score("error", 0.0, detail="!")),
    )
    weights = {"a": 1.0, "b": 1.0}
    assert run(combine({"a": good, "b": late}, weights)).outcome == "timeout"
    assert run(combine({"a": broken, "b": late}, weights)) == Score("error", 0.0, {}, "a: !")


def test_graders_and_weights_must_agree() -> None:
    with pytest.raises(ConfigError, match="one weight"):
        combine({"a": Fixed(Score("ok", 1.0))}, {"b": 1.0})
    with pytest.raises(ConfigError, match="finite"):
        combine({"a": Fixed(Score("ok", 1.0))}, {"a": float("nan")})


def test_a_guarded_grader_passes_its_score_on() -> None:
    assert run(guarded(Fixed(Score("ok", 0.7, {"x": 0.7})), 5)) == Score("ok", 0.7, {"x": 0.7})


def test_a_crash_is_an_error_and_counted() -> None:
    score = run(guarded(Crash(KeyError("city")), 5, name="crashing"))
    assert score.outcome == "error"
    assert "KeyError: 'city'" in score.detail
    assert b'rondo:grader_scores_total{grader="crashing",outcome="error"} 1.0' in render()


def test_a_late_grader_is_a_timeout_and_counted() -> None:
    score = run(guarded(Fixed(Score("ok", 1.0), delay_s=30), 0.01, name="late"))
    assert score == Score("timeout", 0.0, {}, "late gave no score within 0.01 s")
    assert b'rondo:grader_scores_total{grader="late",outcome="timeout"} 1.0' in render()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "it returned 'None', which is no Score"),
        ("very good", "it returned 'very good', which is no Score"),
        (0.5, "it returned '0.5', which is no Score"),
    ],
)
def test_what_is_no_score_is_an_error(returned: object, said: str) -> None:
    score = run(guarded(Fixed(cast(Score, returned)), 5))
    assert score.outcome == "error"
    assert said in score.detail


def test_who_wants_to_end_the_program_is_an_error() -> None:
    assert "SystemExit(3)" in run(guarded(Crash(SystemExit(3)), 5)).detail


def test_one_that_does_not_heed_its_limit_is_a_timeout_and_nobody_waits_for_it() -> None:
    """It goes on when it is cancelled, as a loop does that catches everything."""
    go = asyncio.Event()

    class Deaf:
        async def score(self, sample: Sample) -> Score:
            while not go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await go.wait()
            return Score("ok", 1.0)

    async def ask() -> Score:
        score = await asyncio.wait_for(guarded(Deaf(), 0.05, name="deaf").score(SAMPLE), 60)
        go.set()
        return score

    assert asyncio.run(ask()) == Score("timeout", 0.0, {}, "deaf gave no score within 0.05 s")


def test_cancelling_still_cancels() -> None:
    with pytest.raises(asyncio.CancelledError):
        run(guarded(Crash(asyncio.CancelledError()), 5))


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        guarded(Fixed(Score("ok", 1.0)), 0)
