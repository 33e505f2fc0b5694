import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import Conflict, ModelError, NotFound, StorageError
from rondo.base.storage import files
from rondo.base.storage.files import atomic_dir, atomic_write, parse_json, read_json, write_json


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fail_with(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_write_makes_folders_and_replaces(tmp_path: Path):
    target = tmp_path / "a" / "b.txt"
    atomic_write(target, "one")
    atomic_write(target, b"two")
    assert target.read_bytes() == b"two"
    assert listing(tmp_path) == ["a", "a/b.txt"]


def test_written_file_has_the_usual_permissions(tmp_path: Path):
    (tmp_path / "plain").write_text("")
    atomic_write(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "file"
    atomic_write(target, "old")
    monkeypatch.setattr(files.os, "fsync", fail_with(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"No space left to write .*file \(3 B needed, .* free\)"):
        atomic_write(target, "new")
    assert target.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file/inner"):
        atomic_write(tmp_path / "file" / "inner", "x")


def test_a_full_disk_leaves_nothing(tmp_path: Path):
    """The kernel itself refuses the write: a process that may not write more than 64 KB to a file."""
    script = (
        "import resource, signal, sys\n"
        "from rondo.base.errors import StorageError\n"
        "from rondo.base.storage.files import atomic_dir, atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "for attempt in ('file', 'dir'):\n"
        "    try:\n"
        "        if attempt == 'file':\n"
        "            atomic_write(sys.argv[1] + '/big', bytes(10**6))\n"
        "        else:\n"
        "            with atomic_dir(sys.argv[1] + '/folder') as temp:\n"
        "                (temp / 'small').write_bytes(b'x')\n"
        "                (temp / 'big').write_bytes(bytes(10**6))\n"
        "    except StorageError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    first, second = done.stdout.splitlines()
    assert f"No space left to write {tmp_path}/big (976.6 KB needed" in first
    assert f"No space left to write {tmp_path}/folder (" in second
    assert listing(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 65536


def test_dir_appears_whole(tmp_path: Path):
    target = tmp_path / "models" / "demo"
    with atomic_dir(target) as temp:
        (temp / "inner").mkdir()
        (temp / "inner" / "file").write_text("x")
        assert not target.exists()
    assert listing(tmp_path) == ["models", "models/demo", "models/demo/inner", "models/demo/inner/file"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_dir_vanishes_on_failure(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)), atomic_dir(tmp_path / "demo") as temp:
        (temp / "half").write_text("x")
        raise error
    assert listing(tmp_path) == []


def test_dir_refuses_what_is_there(tmp_path: Path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "old").write_text("old")
    with pytest.raises(Conflict, match="already exists"), atomic_dir(tmp_path / "demo"):
        pytest.fail("the block must not run")
    (tmp_path / "file").write_text("x")
    with pytest.raises(Conflict, match="not a plain folder"), atomic_dir(tmp_path / "file", replace=True):
        pytest.fail("the block must not run")


def test_dir_takes_an_empty_place(tmp_path: Path):
    (tmp_path / "demo").mkdir()
    with atomic_dir(tmp_path / "demo") as temp:
        (temp / "file").write_text("x")
    assert listing(tmp_path) == ["demo", "demo/file"]


@pytest.mark.parametrize("kernel_can", [True, False])
def test_dir_replaces(tmp_path: Path, kernel_can: bool, monkeypatch: pytest.MonkeyPatch):
    if not kernel_can:
        monkeypatch.setattr("rondo.base.storage.exchange.ctypes.CDLL", lambda *_, **__: object())
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "old").write_text("old")
    with atomic_dir(tmp_path / "demo", replace=True) as temp:
        (temp / "new").write_text("new")
    assert listing(tmp_path) == ["demo", "demo/new"]


def test_failed_replacement_keeps_the_old(tmp_path: Path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "old").write_text("old")
    with pytest.raises(RuntimeError), atomic_dir(tmp_path / "demo", replace=True):
        raise RuntimeError
    assert listing(tmp_path) == ["demo", "demo/old"]


def test_dir_that_cannot_fit_is_refused_before_writing(tmp_path: Path):
    with pytest.raises(StorageError, match=r"1024\.0 TB needed"), atomic_dir(tmp_path / "demo", needed=2**50):
        pytest.fail("the block must not run")


def test_an_extension_that_hides_the_error_number_is_understood(tmp_path: Path):
    with pytest.raises(StorageError, match="No space left"), atomic_dir(tmp_path / "demo"):
        raise ValueError("I/O error: No space left on device (os error 28)")


def test_a_dead_writers_leftovers_are_swept_and_a_live_ones_kept(tmp_path: Path):
    long_ago = time.time() - 3600
    dead, other = tmp_path / ".demo.0123456789ab.tmp", tmp_path / ".other.0123456789ab.tmp"
    for folder in (dead, other):
        folder.mkdir()
        os.utime(folder, (long_ago, long_ago))
    with atomic_dir(tmp_path / "demo") as live:
        os.utime(live, (long_ago, long_ago))
        with pytest.raises(RuntimeError), atomic_dir(tmp_path / "demo"):
            raise RuntimeError
        assert live.exists()
    assert listing(tmp_path) == [".other.0123456789ab.tmp", "demo"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, value: object):
    path = tmp_path_factory.getbasetemp() / "value.json"
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return
    write_json(path, value)
    assert read_json(path) == value


def test_json_errors(tmp_path: Path):
    with pytest.raises(NotFound, match=r"no file .*absent\.json"):
        read_json(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(StorageError, match=r"broken\.json is not valid JSON"):
        read_json(tmp_path / "broken.json")


BROKEN_JSON = [b"{", b"\xff\xfe{", b"", b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000]


@pytest.mark.parametrize("data", BROKEN_JSON, ids=range(len(BROKEN_JSON)))
def test_json_that_cannot_be_read_is_named(tmp_path: Path, data: bytes):
    with pytest.raises(ModelError, match=r"here\.json is not valid JSON"):
        parse_json(data, "here.json")
    (tmp_path / "own.json").write_bytes(data)
    with pytest.raises(StorageError, match=r"own\.json is not valid JSON"):
        read_json(tmp_path / "own.json")


def test_json_as_bytes_and_as_text():
    assert parse_json('{"a": [1]}', "x") == parse_json(b'{"a": [1]}', "x") == {"a": [1]}
