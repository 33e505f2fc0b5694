"""Batches while the machine's clock is set: completion windows follow that clock, leases of requests do not.

Forwards past the window, the batch expires with the results until then. Backwards, it continues, and its window ends
later by the difference. In neither case is a request lost or answered twice.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from control.test_batch_crashes import LINES, Crash, Setup, crashing
from rondo.control.config import QueueConfig
from rondo.control.objects import driver, output
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Swept
from rondo.control.store import clock
from rondo.control.store.check import problems
from rondo.control.store.store import Store
from support.stores import new_store

HOUR = 3600.0


class WallClock:
    """The machine's clock, as the store reads it. The monotonic clock is not set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self.ahead * 1e9)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    wall = WallClock()
    monkeypatch.setattr(clock, "time", SimpleNamespace(time_ns=wall.time_ns, monotonic_ns=time.monotonic_ns))
    return wall


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CHUNK_LINES", 2)
    monkeypatch.setattr(output, "AT_A_TIME", 2)


def codes(setup: Setup, id: str) -> list[str]:
    """Codes of errors, in the order of the lines."""
    lines = sorted(setup.lines(id), key=lambda each: int(each["custom_id"]))
    return [each["error"]["code"] for each in lines if each["error"]]


def test_a_jump_past_the_window_expires_the_batch_with_the_results_until_then(
    store: Store, tmp_path: Path, wall: WallClock
) -> None:
    setup = Setup(store, tmp_path / "files")
    batch = setup.begin()
    setup.drive(batch.id)
    assert len(setup.answer(3)) == 3
    late = setup.leases.take("late", ["m"], 2).result()
    wall.ahead = 25 * HOUR
    assert setup.leases.sweep().result() == Swept(), "no lease has ended"
    for _ in range(3):
        setup.drive(batch.id)
    done = setup.batches.get(batch.id, None).result()
    assert (done.state, done.total, done.completed) == ("expired", LINES, 2)
    assert codes(setup, batch.id) == ["batch_expired"] * 4, "one of the three results is a refusal"
    setup.check(done)
    before = setup.lines(batch.id)
    setup.leases.finish([setup.finished(each) for each in late]).result()
    assert setup.answer() == []
    for ahead in (0.0, -25 * HOUR):
        wall.ahead = ahead
        setup.drive(batch.id)
    assert setup.batches.get(batch.id, None).result() == done, "it has ended, whatever the clock is set to"
    assert setup.lines(batch.id) == before


@pytest.mark.parametrize(
    "hours", [23, -25, -24 * 400], ids=["within the window", "back a day", "back a year"]
)
def test_after_another_jump_the_batch_continues(
    store: Store, tmp_path: Path, wall: WallClock, hours: int
) -> None:
    """Leases stay, also for a gateway that is started after the jump: no request is answered twice."""
    setup = Setup(store, tmp_path / "files")
    batch = setup.begin()
    setup.drive(batch.id)
    answered = setup.answer(3)
    held = setup.leases.take("slow", ["m"], 2).result()
    wall.ahead = hours * HOUR
    restarted = Store(store.place)
    other = Setup(restarted, tmp_path / "files")
    other.leases.renew().result()
    other.leases.sweep().result()
    assert Queue(restarted, QueueConfig(keep=HOUR)).prune().result() == 0
    for _ in range(4):
        setup.drive(batch.id)
        answered += other.answer()
    assert setup.batches.get(batch.id, None).result().state == "in_progress", "two requests are leased"
    setup.leases.finish([setup.finished(each) for each in held]).result()
    for _ in range(3):
        setup.drive(batch.id)
    answered += [each.id for each in held]
    assert len(answered) == len(set(answered)) == LINES
    done = setup.batches.get(batch.id, None).result()
    assert (done.state, done.completed, done.expires) == ("completed", 5, batch.expires)
    setup.check(done)
    assert restarted.read(problems).result() == []
    restarted.close()


def test_set_back_before_a_driver_sees_it_nothing_has_happened(
    store: Store, tmp_path: Path, wall: WallClock
) -> None:
    setup = Setup(store, tmp_path / "files")
    batch = setup.begin()
    setup.drive(batch.id)
    wall.ahead = 25 * HOUR
    assert len(setup.answer()) == LINES
    wall.ahead = 0.0
    for _ in range(3):
        setup.drive(batch.id)
    assert setup.batches.get(batch.id, None).result().state == "completed"


def test_set_back_the_window_ends_later(store: Store, tmp_path: Path, wall: WallClock) -> None:
    """The window ends at a time of the clock: 24 h and the hour by which it was set back."""
    setup = Setup(store, tmp_path / "files")
    batch = setup.begin()
    for ahead, state in ((-1.0, "in_progress"), (23.5, "in_progress"), (24.5, "expired")):
        wall.ahead = ahead * HOUR
        for _ in range(3):
            setup.drive(batch.id)
        assert setup.batches.get(batch.id, None).result().state == state


class Jump(Crash):
    """Sets the clock after one of the driver's operations, instead of ending it."""

    def __init__(self, at: int | None, set_clock: Callable[[], None]) -> None:
        super().__init__(at)
        self.set_clock = set_clock

    def around(self, operation: Any) -> Any:
        def jumping(*given: Any, **named: Any) -> Any:
            self.count += 1
            result = operation(*given, **named)
            if self.count == self.at:
                self.set_clock()
            return result

        return jumping


@pytest.mark.parametrize("hours", [25, -25])
def test_a_jump_at_each_operation_of_the_driver_loses_and_repeats_nothing(
    memory: Path, wall: WallClock, hours: int
) -> None:
    store, states = new_store(memory / "rondo.db"), list[str]()

    def life(at: int | None) -> Jump:
        wall.ahead = 0.0
        jump = Jump(at, lambda: setattr(wall, "ahead", hours * HOUR))
        setup = Setup(store, memory / f"files-{at}", owner=str(at))
        batch = setup.begin()
        answered = list[str]()
        for number in (0, 3, 0, 100, 100, 100):
            with crashing(setup, jump):
                setup.drive(batch.id)
            answered += setup.answer(number) if number else []
        setup.drive(batch.id)
        done = setup.batches.get(batch.id, None).result()
        assert len(answered) == len(set(answered))
        setup.check(done)
        if done.total:  # else it expired before its lines were counted
            assert len(codes(setup, batch.id)) == LINES - len(answered)
        states.append(done.state)
        return jump

    whole = life(None)
    assert states == ["completed"]
    for at in range(1, whole.count + 1):
        life(at)
    assert set(states) == {"completed", "expired"} if hours > 0 else {"completed"}
    assert store.read(problems).result() == []
    store.close()
