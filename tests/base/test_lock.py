import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from rondo.base.lock import FOREVER, hold, lock, locked, locked_folder, open_lock, remove_unheld

HOLDER = """
import sys
from pathlib import Path
from rondo.base.lock import lock, open_lock
assert lock(open_lock(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_held_by_another_process_is_not_acquired(tmp_path, holder):
    with locked(tmp_path / "lock") as acquired:
        assert not acquired


def test_a_lock_ends_with_a_killed_process(tmp_path, holder):
    holder.kill()
    holder.wait()
    with locked(tmp_path / "lock") as acquired:
        assert acquired


def test_a_waiting_process_acquires_the_lock_when_it_is_released(tmp_path, holder):
    release = threading.Timer(0.2, holder.stdin.close)
    release.start()
    with locked(tmp_path / "lock", FOREVER) as acquired:
        assert acquired
    release.join()


def test_closing_the_handle_releases_the_lock(tmp_path):
    first, second = open_lock(tmp_path / "lock"), open_lock(tmp_path / "lock")
    assert lock(first)
    assert not lock(second)
    os.close(first)
    assert lock(second)
    os.close(second)


def test_a_held_folder_is_not_removed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    handle = hold(folder)
    assert not remove_unheld(folder)
    os.close(handle)
    assert remove_unheld(folder)
    assert not folder.exists()


def test_a_folder_is_locked_during_the_block(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    with locked_folder(tmp_path):
        assert not lock(handle)
    assert lock(handle)
    os.close(handle)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refused(handle, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    with locked(tmp_path / "lock", required=False) as acquired:
        assert acquired
    with pytest.raises(OSError, match="no locks"), locked(tmp_path / "lock"):
        pass
    folder = tmp_path / "run"
    folder.mkdir()
    os.close(hold(folder))
    with pytest.raises(OSError, match="no locks"):
        remove_unheld(folder)
    assert folder.exists()
