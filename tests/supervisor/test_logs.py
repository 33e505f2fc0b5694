"""Log files: rotation, and reading by byte offset."""

from pathlib import Path

import pytest

from rondo.base.errors import NotFound
from rondo.supervisor.logs import RotatingLog, log_file, parts_with_logs, read_log


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    return tmp_path


def test_full_files_are_rotated_and_the_oldest_are_removed() -> None:
    log = RotatingLog(log_file("part"), 10, 2)
    for number in range(5):
        log.write(b"line %d\n" % number)
    log.close()
    folder = log_file("part").parent
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        "part.log": b"line 4\n",
        "part.log.1": b"line 3\n",
        "part.log.2": b"line 2\n",
    }
    assert parts_with_logs() == ["part"]


def test_the_end_is_read_then_followed_then_scrolled_back() -> None:
    log = RotatingLog(log_file("part"), 1000, 1)
    log.write(b"".join(b"line %d\n" % number for number in range(10)))
    tail = read_log("part", None, 17)
    assert (tail.data, tail.end, tail.size) == (b"line 8\nline 9\n", 70, 70)
    log.write(b"line 10\nhalf")
    following = read_log("part", tail.end, 100, tail.file)
    assert (following.data, following.end) == (b"line 10\n", 78)
    earlier = read_log("part", tail.start - 14, 14, tail.file)
    assert earlier.data == b"line 6\nline 7\n"
    log.close()


def test_after_a_rotation_reading_begins_at_the_new_file() -> None:
    log = RotatingLog(log_file("part"), 10, 1)
    log.write(b"before\n")
    seen = read_log("part", None, 100)
    log.write(b"after it\n")
    log.close()
    assert read_log("part", seen.end, 100, seen.file).data == b"after it\n"


@pytest.mark.parametrize("part", ["none", "../admin-key", "a/b", "", "A", "x.log"])
def test_a_log_that_does_not_exist_is_not_found(part: str) -> None:
    with pytest.raises(NotFound, match="There is no log"):
        read_log(part, None, 10)
