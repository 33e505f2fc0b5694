"""Where a step's time goes: phases, and what goes on beside them."""

import time
from itertools import count

import pytest

from rondo.rl.record.timer import PHASES, LoopTimer


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a second later."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))


def test_a_phase_within_another_has_its_own_time(seconds: None) -> None:
    clock = LoopTimer(begin=-1.0)
    with clock("push"), clock("train"):
        pass
    metrics = clock.metrics(tokens=12)
    assert (metrics["seconds/push"], metrics["seconds/train"]) == (2.0, 1.0)
    assert metrics["seconds"] == 5.0
    assert metrics["tokens_per_second"] == 12 / 5
    assert {name for name in metrics if name.startswith("seconds/")} == {f"seconds/{each}" for each in PHASES}


def test_what_graders_do_while_nobody_waits_for_them_is_hidden() -> None:
    worked = [3.0]
    clock = LoopTimer(lambda: worked[0])
    with clock("rollout"):
        worked[0] += 5.0
    with clock("score"):
        worked[0] += 2.0
    with clock("train"):
        worked[0] += 1.0
    assert clock.metrics(0)["hidden/score"] == 6.0
