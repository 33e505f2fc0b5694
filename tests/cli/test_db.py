"""`rondo db`: upgrade, backup and restore while others use the store, and check."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rondo.cli.main import main
from rondo.control.migrations import HEAD
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New
from rondo.control.store.store import Store


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_STORE_URL", raising=False)
    return tmp_path / "rondo.db"


def db(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = main(["db", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def put(path: Path, number: int) -> list[str]:
    store = Store(path)
    names = [Queue(store).put([New("m", "1")] * 2, "me").result().name for _ in range(number)]
    store.close()
    return names


def groups(path: Path) -> list[str]:
    store = Store(path)
    names = [group.name for group in Queue(store).groups(limit=1000).result()]
    store.close()
    return names[::-1]


def test_upgrade_creates_the_tables_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert db(capsys, "upgrade") == (0, f"{path} upgraded from empty to {HEAD}.\n")
    assert db(capsys, "upgrade") == (0, f"{path} is at revision {HEAD} already.\n")


def test_a_backup_is_of_one_moment_while_others_write(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, stop = Store(path), threading.Event()

    def write() -> None:
        while not stop.is_set():
            Queue(store).put([New("m", "1")] * 3, "me").result()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            copy = tmp_path / f"backup{number}.db"
            assert db(capsys, "backup", copy) == (0, f"Wrote {copy}.\n")
            copied = Store(copy)
            for group in Queue(copied).groups(limit=1000).result():
                assert len(Queue(copied).requests(group.name).result()) == 3
            copied.close()
    finally:
        stop.set()
        writer.join()
        store.close()
    assert not list(tmp_path.glob("*.part"))
    assert (tmp_path / "backup0.db").stat().st_mode & 0o777 == 0o600


def test_restore_puts_a_backup_in_the_place_of_the_store(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = put(path, 3)
    db(capsys, "backup", tmp_path / "b.db")
    lost = put(path, 2)
    code, said = db(capsys, "restore", tmp_path / "b.db")
    assert code == 0, said
    assert groups(path) == kept
    aside = tmp_path / "rondo.db.replaced-1"
    assert str(aside) in said
    assert groups(aside) == kept + lost


def test_restore_replaces_a_damaged_file(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = put(path, 2)
    db(capsys, "backup", tmp_path / "b.db")
    path.write_bytes(b"\xff" * 9000)
    code, said = db(capsys, "check")
    assert code == 6
    assert "is damaged" in said
    assert "rondo db restore FILE" in said
    assert db(capsys, "restore", tmp_path / "b.db")[0] == 0
    assert groups(path) == names


def test_restore_refuses_while_another_process_has_the_store_open(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = put(path, 1)
    db(capsys, "backup", tmp_path / "b.db")
    script = (
        "import sys; from rondo.control.store.store import Store; s = Store(sys.argv[1]); "
        "print(flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    try:
        code, said = db(capsys, "restore", tmp_path / "b.db")
        assert code == 5
        assert f"another process has {path} open: stop it first" in said
    finally:
        other.communicate()
    assert db(capsys, "restore", tmp_path / "b.db")[0] == 0
    assert groups(path) == names


def test_a_file_that_is_no_backup_replaces_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = put(path, 1)
    other, newer, damaged = tmp_path / "other.db", tmp_path / "newer.db", tmp_path / "damaged.db"
    with sqlite3.connect(other) as made:
        made.execute("CREATE TABLE t (x)")
    db(capsys, "backup", newer)
    with sqlite3.connect(newer) as made:
        made.execute("UPDATE alembic_version SET version_num = '9999'")
    damaged.write_bytes(b"x" * 5000)
    for file, code, words in (
        (other, 6, "is not a backup of a store"),
        (newer, 5, "newer version of Rondo"),
        (damaged, 6, "is damaged"),
        (tmp_path / "absent", 4, "There is no file"),
    ):
        got, said = db(capsys, "restore", file)
        assert got == code, said
        assert words in said
    assert groups(path) == names


def test_check_names_counters_and_payloads_that_are_wrong(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = put(path, 1)
    assert db(capsys, "check") == (0, f"{path} is sound, at revision {HEAD}.\n")
    with sqlite3.connect(path) as made:
        made.execute("UPDATE counts SET number = 7")
        made.execute("UPDATE groups SET unfinished = 1")
        made.execute("DELETE FROM bodies WHERE id = 1")
        made.execute("INSERT INTO results (id, result) VALUES (99, '1')")
    made.close()
    code, said = db(capsys, "check")
    assert code == 6
    assert "the counter of queued requests of m is 7, and there are 2" in said
    assert f"the totals of groups differ from their requests: {name}" in said
    assert "1 requests have no body" in said
    assert "1 rows of results belong to no request" in said


def test_errors_name_the_remedy(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = db(capsys, "check")
    assert (code, said) == (4, f"error: There is no file {path}.\n")
    put(path, 1)
    assert "There is no folder" in db(capsys, "backup", tmp_path / "absent" / "b.db")[1]
    monkeypatch.setenv("RONDO_STORE_URL", "postgresql://rondo:secret@127.0.0.1:1/rondo")
    assert "`pg_dump --format=custom --file=FILE`" in db(capsys, "backup", "x")[1]
    assert "`pg_restore" in db(capsys, "restore", "x")[1]
    code, said = db(capsys, "check")
    assert "start PostgreSQL, or correct RONDO_STORE_URL" in said
    assert "secret" not in said
    monkeypatch.setenv("RONDO_STORE_URL", "mysql://host/rondo")
    assert "RONDO_STORE_URL names mysql: use postgresql://" in db(capsys, "check")[1]
