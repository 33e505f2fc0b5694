"""What is said of ranks that others wait for: who is late, at what, and which setting gives it more time."""

import threading
from collections.abc import Sequence
from typing import cast

import pytest
import torch.distributed

from rondo.base.errors import ConfigError, Conflict, RondoError, Unavailable
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks import crew
from rondo.parallel.ranks.board import Failure, Heartbeat, RankStore
from rondo.parallel.ranks.world import World

SLOW, AT = "loading the model", "dividing the model"
GLOO = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation to complete"


class Notes:
    """A board whose ranks have all said the same ever since."""

    host = "here"

    def __init__(self, rank: int, beats: Sequence[Heartbeat]) -> None:
        self.world = World(rank, len(beats))
        self._beats = beats
        self._failure: Failure | None = None
        self.heard = False

    def beat(self, beat: Heartbeat) -> None: ...

    def beats(self) -> Sequence[Heartbeat]:
        return self._beats

    def hear(self) -> None:
        self.heard = True

    def failure(self) -> Failure | None:
        return self._failure

    def fail(self, failure: Failure) -> Failure:
        self._failure = self._failure or failure
        return self._failure


class Living(Notes):
    """They live, and beat on."""

    count = 0

    def beats(self) -> list[Heartbeat]:
        self.count += 1
        return [Heartbeat(b.rank, b.host, b.steps, b.what, self.count) for b in self._beats]


def watch_of(monkeypatch: pytest.MonkeyPatch, notes: Notes, **layout: float) -> crew._Watch:
    """Without its thread."""
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(crew, "SILENT_SECONDS", 0.01)
    return crew._Watch(cast(RankStore, notes), LayoutConfig.model_validate(layout))


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def stopped(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """From here on time passes by hand."""
    clock = Clock()
    monkeypatch.setattr(crew, "time", clock)
    return clock


def ranks(*at: str) -> list[Heartbeat]:
    return [Heartbeat(rank, f"host{rank}", int(what != SLOW), what, 1) for rank, what in enumerate(at)]


def test_setting_up_that_takes_too_long_names_what_gives_it_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watch_of(monkeypatch, Living(0, ranks(AT, SLOW)), timeout=600)
    clock = stopped(monkeypatch)
    assert watch._look() is None
    clock.now += 599
    assert watch._look() is None
    clock.now += 2
    found = watch._look()
    assert found is not None
    assert (found.rank, found.hang) == (1, True)
    assert found.message == (
        "no rank has got on for 601 s: this one is at loading the model, while others wait at dividing the model. "
        "If that takes so long, raise train.layout.timeout"
    )


def test_a_step_that_takes_too_long_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(monkeypatch, Living(0, ranks("step 3: optimizer", "step 3: optimizer")), stall=60)
    clock = stopped(monkeypatch)
    for step in (1, 2, 3):
        watch.doing(f"step {step}: optimizer")
    assert watch._look() is None
    clock.now += 61
    found = watch._look()
    assert found is not None
    assert "as all ranks are. If that takes so long, raise train.layout.stall" in found.message


@pytest.mark.parametrize(
    "error", [RuntimeError(GLOO), torch.distributed.DistStoreError("wait timeout after 600000ms")]
)
def test_a_collective_that_waited_in_vain_names_whom_it_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    watch = watch_of(monkeypatch, Living(0, ranks(AT, AT, SLOW)), timeout=600)
    said = watch.explained(error)
    assert isinstance(said, crew.RankFailed)
    assert str(said) == (
        "rank 2 on host2: others have waited 600 s for it (loading the model). If that takes so long, raise "
        "train.layout.timeout"
    )


@pytest.mark.parametrize(("rank", "begins"), [(0, ""), (1, "rank 0 on host0: ")])
def test_where_all_are_at_the_same_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch, rank: int, begins: str
) -> None:
    watch = watch_of(monkeypatch, Living(rank, ranks(AT, AT)), timeout=5)
    assert str(watch.explained(RuntimeError(GLOO))) == (
        f"{begins}a rank has waited 5 s for others (dividing the model, as all are). If that takes so long, "
        "raise train.layout.timeout"
    )


def test_a_rank_that_is_silent_is_lost_and_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(monkeypatch, Notes(0, ranks(AT, SLOW)), timeout=600)
    assert str(watch.explained(RuntimeError(GLOO))) == (
        "rank 1 on host1: it was lost while others waited for it (loading the model)"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_speaks_for_those_that_have_failed_too(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    notes = Living(rank, ranks(AT, AT))
    watch = watch_of(monkeypatch, notes)
    wrong = ConfigError("that does not divide")
    assert watch.explained(wrong) is wrong
    assert notes.heard == (rank == 0)


def lost_in_a_push() -> RondoError:
    error = Unavailable("another rank of the learner did not answer", code="rank_lost")
    error.__cause__ = RuntimeError(GLOO)
    return error


def test_a_push_that_lost_a_rank_names_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(monkeypatch, Living(0, ranks(AT, SLOW)), timeout=600)
    assert str(watch.explained(lost_in_a_push())).startswith("rank 1 on host1: others have waited 600 s")
    silent = watch_of(monkeypatch, Notes(0, ranks(AT, SLOW)), timeout=600)
    assert str(silent.explained(lost_in_a_push())).startswith("rank 1 on host1: it was lost")


def test_the_failure_of_another_rank_in_a_push_precedes_its_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Notes):
        """Rank 0 reports its failure a moment after its echo was raised here."""

        looks = 0

        def failure(self) -> Failure | None:
            self.looks += 1
            return self.fail(Failure(0, "host0", "the claim was lost", 1)) if self.looks > 1 else None

    watch = watch_of(monkeypatch, Later(1, ranks(AT, AT)), timeout=600)
    monkeypatch.setattr(crew, "SILENT_SECONDS", 10)
    found = watch.explained(Conflict("rank 0 of the learner failed", code="rank_failed"))
    assert str(found) == "rank 0 on host0: the claim was lost"
