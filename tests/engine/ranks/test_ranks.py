"""The processes beside rank 0, as far as they need no model."""

import os
import signal
import sys

import pytest

from rondo.base.errors import RondoError, Unavailable
from rondo.engine.ranks import ranks
from rondo.engine.ranks.ranks import Ranks
from support.waiting import run, until

IDLE = "import os, sys; os.read(int(sys.argv[2]), 1)"
"""A rank that does nothing, and ends with rank 0 as they all do."""


def test_a_lost_rank_ends_the_others_whatever_those_do_who_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ranks, "python_call", lambda function, *arguments: [sys.executable, "-c", IDLE, *arguments]
    )
    started = Ranks(3, seconds=1)
    told: list[RondoError] = []

    def fails(error: RondoError) -> None:
        raise RuntimeError("of no use")

    started.on_lost += [fails, told.append]
    killed, other = (rank.process for rank in started.others)
    os.kill(killed.pid, signal.SIGKILL)
    run(until(lambda: other.returncode is not None and not started.meeting.parent.exists()))
    assert "rank 1 of 3" in str(started.lost)
    assert told == [started.lost]
    with pytest.raises(Unavailable, match="was killed by signal 9"):
        started.check()
