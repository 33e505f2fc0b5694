"""Batches whose driver dies: after each operation that changes the disk, which is before the next one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import Unavailable
from rondo.control.config import BatchesConfig, FilesConfig, QueueConfig
from rondo.control.objects import driver, output
from rondo.control.objects.batches import Batches, NewBatch, StoredBatch
from rondo.control.objects.blobs import Blobs
from rondo.control.objects.driver import Driver, Drivers
from rondo.control.objects.files import Files, new_file
from rondo.control.objects.pages import PageQuery
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, Leased
from rondo.control.store.check import problems
from rondo.control.store.store import Store
from support.stores import new_store

CHAT = "/v1/chat/completions"
LINES = 7


class Killed(BaseException):
    """Passes each handler, as the end of a process would."""


class Crash:
    """Ends the driver at one of its operations; counts them."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0
        self.ended = 0
        """Operations before the batch was cancelled, if it was."""

    def around(self, operation: Any) -> Any:
        def crashing(*given: Any, **named: Any) -> Any:
            self.count += 1
            result = operation(*given, **named)
            if self.count == self.at:
                getattr(result, "result", lambda: None)()
                raise Killed
            return result

        return crashing


class Setup:
    def __init__(self, store: Store, folder: Path, owner: str = "me") -> None:
        self.store, self.blobs, self.owner = store, Blobs(folder), owner
        self.config = BatchesConfig(duty_seconds=1000)
        self.files = Files(store, self.blobs, FilesConfig())
        self.batches = Batches(store, self.blobs, self.config)
        self.leases = Leases(store)

    def begin(self, lines: int = LINES) -> StoredBatch:
        texts = [
            {"custom_id": str(n), "method": "POST", "url": CHAT, "body": {"model": "m", "n": n}}
            for n in range(lines)
        ]
        blob = self.blobs.new()
        blob.write("".join(json.dumps(each) + "\n" for each in texts).encode())
        file = self.files.add(
            new_file(self.owner, "x", "batch", blob.size, None, FilesConfig()), blob
        ).result()
        return self.batches.create(self.owner, NewBatch(CHAT, file.id, "24h")).result()

    def drivers(self) -> Drivers:
        return Drivers(Queue(self.store), self.blobs, lambda: None, self.config, FilesConfig())

    def drive(self, id: str) -> None:
        Driver(self.drivers(), id).run()

    def answer(self, most: int = 100) -> list[str]:
        leased = self.leases.take("w", ["m"], most).result()
        self.leases.finish([self.finished(each) for each in leased]).result()
        return [each.id for each in leased]

    def finished(self, leased: Leased) -> Finished:
        """Each third request is refused."""
        number = json.loads(leased.body)["body"]["n"]
        wrong = number % 3 == 2
        text = json.dumps({"status": 400 if wrong else 200, "request_id": "r", "body": {"n": number}})
        if wrong:
            return Finished(leased.id, leased.lease, error=text)
        return Finished(leased.id, leased.lease, text)

    def lines(self, id: str) -> list[dict[str, Any]]:
        both = [self.blobs.kept(each) for each in output.output_ids(id)]
        return [json.loads(text) for path in both if path.exists() for text in path.read_text().splitlines()]

    def check(self, batch: StoredBatch) -> None:
        """Each line is in one of the files, once."""
        assert sorted(int(each["custom_id"]) for each in self.lines(batch.id)) == list(range(batch.total))
        assert sum(batch.counts.values()) == 2 * batch.total
        listed = self.files.page(self.owner, PageQuery(limit=100), "batch_output").result().data
        wanted = [each for each in output.output_ids(batch.id) if self.blobs.kept(each).exists()]
        assert sorted(each.id for each in listed) == sorted(wanted)
        assert not list((self.blobs.folder / "batches").iterdir())


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CHUNK_LINES", 2)
    monkeypatch.setattr(driver, "CHUNKS", 2)
    monkeypatch.setattr(output, "AT_A_TIME", 2)


@contextmanager
def crashing(setup: Setup, crash: Crash) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup.store, "write", crash.around(setup.store.write))
        patch.setattr(setup.blobs, "link", crash.around(setup.blobs.link))
        patch.setattr(setup.blobs, "remove_working", crash.around(setup.blobs.remove_working))
        patch.setattr(driver, "_cut", crash.around(driver._cut))
        patch.setattr(output, "write_at", crash.around(output.write_at))
        yield


def life(setup: Setup, crash: Crash, ending: str) -> StoredBatch:
    """A batch from its creation to its end, with a driver that is killed once and followed by another."""
    batch = setup.begin()
    for _ in range(3):
        _killable(setup, batch.id, crash)
    setup.answer(3)
    _killable(setup, batch.id, crash)
    if ending == "cancelled" and setup.batches.get(batch.id, None).result().state in (
        "validating",
        "in_progress",
    ):
        setup.batches.cancel(batch.id, setup.owner).result()
        crash.ended = crash.count
    for _ in range(4):
        _killable(setup, batch.id, crash)
        setup.answer()
    for _ in range(3):
        setup.drive(batch.id)
        setup.answer()
    return setup.batches.get(batch.id, None).result()


def _killable(setup: Setup, id: str, crash: Crash) -> None:
    try:
        with crashing(setup, crash):
            setup.drive(id)
    except Killed:
        return


@pytest.mark.parametrize("ending", ["completed", "cancelled"])
def test_a_driver_killed_at_each_operation_loses_and_repeats_nothing(memory: Path, ending: str) -> None:
    """A batch that is cancelled is, up to there, as one that is not."""
    store = new_store(memory / "rondo.db")
    whole = Crash(None)
    life(Setup(store, memory / "files"), whole, ending)
    assert whole.count > 15
    for at in range(whole.ended + 1, whole.count + 1):
        setup = Setup(store, memory / str(at), owner=str(at))
        batch = life(setup, Crash(at), ending)
        assert (batch.state, batch.total) == (ending, LINES), at
        setup.check(batch)
    assert store.read(problems).result() == []
    store.close()


def test_a_driver_that_was_overtaken_changes_nothing(tmp_path: Path) -> None:
    """It was stopped for longer than its duty, and another gateway went on."""
    first, second = Store(tmp_path / "rondo.db"), Store(tmp_path / "rondo.db")
    stopped, active = Setup(first, tmp_path / "files"), Setup(second, tmp_path / "files")
    batch = active.begin()
    active.drive(batch.id)
    assert active.answer()
    stale = stopped.batches.get(batch.id, None).result()
    stopped.drive(batch.id)
    assert stopped.batches.get(batch.id, None).result().written == 0, "it has no duty"
    piece = output.write_results(first, stopped.blobs, stopped.config, stale)
    assert piece is not None
    assert output.write_results(second, active.blobs, active.config, stale) is None
    active.drive(batch.id)
    active.check(active.batches.get(batch.id, None).result())
    first.close()
    second.close()


def test_a_batch_on_each_database(store: Store, tmp_path: Path) -> None:
    setup = Setup(store, tmp_path / "files")
    batch = setup.begin()
    for _ in range(4):
        setup.drive(batch.id)
        setup.answer()
    done = setup.batches.get(batch.id, "me").result()
    assert (done.state, done.completed, done.failed) == ("completed", 5, 2)
    setup.check(done)


@pytest.mark.parametrize("cancelled", [False, True])
def test_results_of_an_unfinished_batch_are_not_pruned(store: Store, tmp_path: Path, cancelled: bool) -> None:
    setup, queue = Setup(store, tmp_path / "files"), Queue(store, QueueConfig(keep=0))
    batch = setup.begin()
    for _ in range(3):
        setup.drive(batch.id)
    setup.answer(4)
    if cancelled:
        setup.batches.cancel(batch.id, "me").result()
        queue.cancel(str(setup.batches.get(batch.id, "me").result().queued_as)).result()
    assert queue.prune().result() == 0
    for _ in range(4):
        setup.drive(batch.id)
        setup.answer()
    done = setup.batches.get(batch.id, "me").result()
    assert (done.state, done.completed) == (("cancelled", 3) if cancelled else ("completed", 5))
    setup.check(done)
    assert queue.prune().result() == 1


def states_of(setup: Setup, ids: list[str]) -> set[str]:
    return {setup.batches.get(id, None).result().state for id in ids}


def poll(setup: Setup, drivers: Drivers) -> None:
    for each in drivers.start(setup.batches.running().result()):
        each.result(60)


def test_each_of_many_unended_batches_has_its_turn(store: Store, tmp_path: Path) -> None:
    setup = Setup(store, tmp_path / "files")
    setup.config = BatchesConfig(duty_seconds=1000, at_once=2)
    drivers, ids = setup.drivers(), [setup.begin().id for _ in range(5)]
    for _ in range(9):
        poll(setup, drivers)
    assert states_of(setup, ids) == {"in_progress"}
    for id in ids[3:]:
        setup.batches.cancel(id, None).result()
    for _ in range(9):
        poll(setup, drivers)
    assert (states_of(setup, ids[:3]), states_of(setup, ids[3:])) == ({"in_progress"}, {"cancelled"})


def test_a_batch_that_could_not_be_started_is_started_later(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(store, tmp_path / "files")
    drivers, batch = setup.drivers(), setup.begin()
    with monkeypatch.context() as patch:
        patch.setattr(store, "background", lambda function: (_ for _ in ()).throw(Unavailable("busy")))
        with pytest.raises(Unavailable):
            drivers.start([batch.id])
    poll(setup, drivers)
    assert states_of(setup, [batch.id]) == {"in_progress"}
