import asyncio
import threading
import time

import pytest

from rondo.graders import Sample, Score
from rondo.rl.rollout import scoring
from rondo.rl.rollout.scoring import RolloutScorer
from support.waiting import scaled

SAMPLE = Sample("?", "answer")


class Slow:
    """Awaits as long as a sample's text says."""

    name = "slow"

    async def score(self, sample: Sample) -> Score:
        await asyncio.sleep(float(sample.completion))
        return Score("ok", float(sample.completion))


def test_scores_come_in_order_and_are_waited_for_together() -> None:
    scorer = RolloutScorer(Slow(), 5.0)
    begin = time.monotonic()
    futures = scorer.submit([Sample("?", str(seconds)) for seconds in (0.3, 0.0, 0.2)])
    assert [score.total for score in scorer.wait(futures)] == [0.3, 0.0, 0.2]
    assert time.monotonic() - begin < scaled(3)
    scorer.close()


def test_a_grader_that_is_late_has_not_judged() -> None:
    scorer = RolloutScorer(Slow(), 0.05)
    (score,) = scorer.wait(scorer.submit([Sample("?", "30")]))
    assert score.outcome == "timeout"
    scorer.close()


def test_it_knows_for_how_long_there_was_anything_to_score() -> None:
    """Of several at once no moment counts twice."""
    scorer = RolloutScorer(Slow(), 5.0)
    assert scorer.at_work == 0
    begin = time.perf_counter()
    scorer.wait(scorer.submit([Sample("?", "0.05")] * 9))
    worked = scorer.at_work
    assert 0.05 <= worked <= time.perf_counter() - begin
    time.sleep(0.01)
    assert scorer.at_work == worked
    scorer.close()


class Stubborn:
    """Computes without ever awaiting, until it is let go."""

    name = "stubborn"

    def __init__(self) -> None:
        self.gate = threading.Event()

    async def score(self, sample: Sample) -> Score:
        if sample.completion == "hang":
            self.gate.wait(60)
        return Score("ok", 1.0)


@pytest.mark.parametrize("inside", [False, True], ids=["from a thread", "from a loop"])
def test_one_that_holds_up_its_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.setattr(scoring, "GRACE_SECONDS", 0.1)
    grader = Stubborn()
    scorer = RolloutScorer(grader, 0.2)
    try:
        hang = Sample("?", "hang")
        found = [asyncio.run(scorer.score(hang))] if inside else scorer.wait(scorer.submit([hang, SAMPLE]))
        assert found[0].outcome == "timeout"
        assert "held up its thread" in found[0].detail
        assert scorer.wait(scorer.submit([SAMPLE]))[0].outcome == "ok", "the next ones are scored again"
    finally:
        grader.gate.set()
        scorer.close()
