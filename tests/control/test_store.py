"""What was answered is on the disk, whatever then happens to the process, the machine or the disk."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import sqlalchemy as sa

from rondo.base.errors import RondoError, StorageError, Unavailable
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store import store as of_store
from rondo.control.store.store import Store
from support.disk import resize, small_disk
from support.stores import new_store

FRAME, HEADER = 24 + 4096, 32
"""Bytes of a page in the write-ahead log, and of what stands before the first."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rondo.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    made = new_store(path)
    yield made
    made.close()


def text(words: str) -> sa.TextClause:
    return sa.text(words)


def whole(path: Path) -> list[tuple[str, ...]]:
    """(group, its states); the file must be sound, and its counts true."""
    made = Store(path)
    try:
        assert made.read(lambda db: db.execute(text("PRAGMA integrity_check")).scalar()).result() == "ok"
        queue = Queue(made)
        found = [
            (group.name, *(each.state for each in queue.requests(group.name).result()))
            for group in reversed(queue.groups(limit=10_000).result())
        ]
        assert sum(queue.counts().result().values()) == sum(len(group) - 1 for group in found)
        return found
    finally:
        made.close()


def test_power_that_fails_at_any_page_takes_nothing_that_was_answered(memory: Path) -> None:
    """The log is cut behind every page, and within one: what was answered by then is there, and nothing by half. Of the
    pages of the first transaction, which makes the tables, it is every tenth."""
    path = memory / "rondo.db"
    store = Store(path)
    queue, leases, log = Queue(store), Leases(store), path.with_name("rondo.db-wal")
    tables = log.stat().st_size
    answered: list[tuple[int, list[tuple[str, ...]]]] = []
    """How long the log was at each answer, and what was there."""
    state: dict[str, list[str]] = {}

    def note() -> None:
        said = [(name, *states) for name, states in state.items()]
        answered.append((log.stat().st_size, said))

    for _ in range(3):
        group = queue.put([New("m", "x" * 3000)] * 3, "me").result()
        state[group.name] = ["queued"] * 3
        note()
        taken = leases.take("w", ["m"], 2).result()
        state[group.name] = ["leased", "leased", "queued"]
        note()
        leases.finish([Finished(each.id, each.lease, "1") for each in taken]).result()
        state[group.name] = ["done", "done", "queued"]
        note()
        queue.cancel(group.name).result()
        state[group.name] = ["done", "done", "cancelled"]
        note()
    files = {name: path.with_name(name).read_bytes() for name in ("rondo.db", "rondo.db-wal")}
    store.close()
    size = len(files["rondo.db-wal"])
    assert (size - HEADER) % FRAME == 0
    cuts = [HEADER + FRAME * i for i in range((size - HEADER) // FRAME + 1)]
    early, late = [cut for cut in cuts if cut < tables][::10], [cut for cut in cuts if cut >= tables]
    assert len(late) > 30
    for number, cut in enumerate([*early, *late, *(cut + 100 for cut in late[:-1:5])]):
        place = memory / f"cut{number}"
        place.mkdir()
        (place / "rondo.db").write_bytes(files["rondo.db"])
        (place / "rondo.db-wal").write_bytes(files["rondo.db-wal"][:cut])
        found = whole(place / "rondo.db")
        sure = [said for length, said in answered if length <= cut]
        later = [said for length, said in answered if length > cut]
        if sure:
            assert found in (sure[-1], *later[:1])


def test_a_process_killed_at_any_moment_leaves_all_that_it_answered(path: Path) -> None:
    told = list[str]()
    for lines in (1, 7, 23):
        putter = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("_putter.py"), path], stdout=subprocess.PIPE, text=True
        )
        assert putter.stdout is not None
        told += [putter.stdout.readline().strip() for _ in range(lines)]
        putter.kill()
        told += [line.strip() for line in putter.stdout if line.endswith("\n")]
        putter.wait()
        found = whole(path)
        assert set(told) <= {group[0] for group in found}
        assert all(group[1:] == ("queued", "queued") for group in found)


def test_who_fails_takes_nobody_along(store: Store) -> None:
    queue = Queue(store)
    held = threading.Event()
    blocked = store.write(lambda db: held.wait(60))
    before = queue.put([New("m", "1")], "me")
    wrong = queue.extend("nothing", 0, [])
    broken: Future[object] = store.write(
        lambda db: db.execute(text("INSERT INTO groups (name) VALUES ('x')"))
    )
    after = queue.put([New("m", "2")], "me")
    held.set()
    assert blocked.result(60)
    names = [before.result(60).name, after.result(60).name]
    with pytest.raises(RondoError, match="no group 'nothing'"):
        wrong.result(60)
    with pytest.raises(sa.exc.IntegrityError):
        broken.result(60)
    assert [group.name for group in queue.groups().result()] == names[::-1]


def test_who_gave_up_waiting_is_left_out(store: Store) -> None:
    held = threading.Event()
    store.write(lambda db: held.wait(60))
    queue = Queue(store)
    given_up, kept = queue.put([New("m", "1")], "me"), queue.put([New("m", "2")], "me")
    assert given_up.cancel()
    held.set()
    assert [group.name for group in queue.groups().result()] in ([], [kept.result(60).name])
    assert queue.counts().result() == {("m", "queued"): 1}


def test_a_full_disk_is_an_error_and_with_room_it_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m"):
        store = Store(tmp_path / "disk" / "rondo.db")
        queue, names = Queue(store), list[str]()
        with pytest.raises(StorageError, match="make room on its disk"):
            for _ in range(1000):
                names.append(queue.put([New("m", "x" * 4000)] * 5, "me").result().name)
        assert names
        assert [group.name for group in queue.groups(limit=1000).result()] == names[::-1], (
            "they can still be read"
        )
        resize(tmp_path / "disk", "8m")
        names.append(queue.put([New("m", "y")], "me").result().name)
        assert [group.name for group in queue.groups(limit=1000).result()] == names[::-1]
        store.close()


def test_a_damaged_file_is_said_to_be(path: Path) -> None:
    path.write_bytes(b"this is no database, but long enough to be one" * 100)
    with pytest.raises(StorageError, match=r"is damaged \(file is not a database\): restore a backup"):
        Store(path)
    path.unlink()
    store = Store(path)
    Queue(store).put([New("m", "x" * 2000)] * 50, "me").result()
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[8192 : len(damaged) - 4096] = b"\xff" * (len(damaged) - 4096 - 8192)
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match="is damaged"):
        whole(path)


def test_a_file_that_another_program_locks_is_an_error_and_then_goes_on(store: Store, path: Path) -> None:
    store.write(lambda db: db.execute(text("PRAGMA busy_timeout = 10"))).result()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    queue = Queue(store)
    with pytest.raises(Unavailable, match="locked by another program"):
        queue.put([New("m", "1")], "me").result()
    assert queue.groups().result() == [], "reading waits for nobody"
    other.execute("ROLLBACK")
    other.close()
    queue.put([New("m", "1")], "me").result()


def test_two_processes_share_the_file(store: Store, path: Path) -> None:
    """Each puts 20 groups at once; one lists what the other has."""
    other = Store(path)
    waited = [Queue(each).put([New("m", "1")] * 2, "me") for _ in range(20) for each in (store, other)]
    names = {each.result(60).name for each in waited}
    assert {group.name for group in Queue(other).groups().result()} == names
    other.close()
    assert len(Queue(store).groups().result()) == 40


def test_a_lease_and_a_result_do_not_rewrite_a_long_body(memory: Path) -> None:
    """Bytes that 20 leases and results add to the log, beside bodies of 64 kB."""
    store = Store(memory / "rondo.db")
    queue, leases, log = Queue(store), Leases(store), memory / "rondo.db-wal"
    queue.put([New("m", "x" * 65536)] * 20, "me").result()
    before = log.stat().st_size
    taken = leases.take("w", ["m"], 20).result()
    leases.finish([Finished(each.id, each.lease, "1") for each in taken]).result()
    assert log.stat().st_size - before < 20 * 8192
    store.close()


def test_the_files_belong_to_their_user_alone(store: Store, path: Path) -> None:
    Queue(store).put([New("m", "1")], "me").result()
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"rondo.db": 0o600, "rondo.db-wal": 0o600, "rondo.db-shm": 0o600}


def test_more_calls_than_the_limit_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_store, "WAITING", 3)
    release = threading.Event()
    waiting = [store.write(lambda db: release.wait(60)) for _ in range(3)]
    with pytest.raises(Unavailable, match=r"3 calls wait for .*rondo.db already: try again later"):
        store.read(lambda db: None)
    release.set()
    assert all(each.result(60) for each in waiting)
    store.write(lambda db: None).result()


def test_nothing_can_be_asked_of_a_store_that_is_closed(tmp_path: Path, path: Path) -> None:
    store = Store(path)
    asked = Queue(store).put([New("m", "1")], "me")
    store.close()
    assert asked.result(0).total == 1, "what was asked before is done"
    with pytest.raises(Unavailable, match="closed"):
        Queue(store).put([], "me")
    store.close()
    assert len(whole(path)) == 1
    shutil.rmtree(tmp_path)
