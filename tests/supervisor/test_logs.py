"""Log files: rotation, and reading by byte offset."""

import threading
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


def test_following_reads_the_end_of_each_rotated_file() -> None:
    log = RotatingLog(log_file("part"), 50, 3)
    log.write(b"begin\n")
    piece = read_log("part", None, 100)
    followed = piece.data
    for number in range(200):
        log.write(b"line %06d\n" % number)
        if number % 9 == 0:  # two rotations at a time
            while (piece := read_log("part", piece.end, 30, piece.file)).data:
                followed += piece.data
    while (piece := read_log("part", piece.end, 30, piece.file)).data:
        followed += piece.data
    log.close()
    assert followed == b"begin\n" + b"".join(b"line %06d\n" % number for number in range(200))


def test_rotated_files_are_read_back_from_their_ends() -> None:
    log = RotatingLog(log_file("part"), 10, 2)
    for number in range(5):
        log.write(b"line %d\n" % number)
    log.close()
    piece = read_log("part", None, 100)
    seen = [piece.data]
    while piece.older is not None:
        piece = read_log("part", None, 100, piece.older)
        seen.append(piece.data)
    assert seen == [b"line 4\n", b"line 3\n", b"line 2\n"]


def test_reading_while_the_files_are_rotated_loses_no_line() -> None:
    log = RotatingLog(log_file("part"), 100, 50)
    log.write(b"begin\n")
    piece = read_log("part", None, 100)
    followed = b""

    def write() -> None:
        for number in range(400):
            log.write(b"line %06d\n" % number)

    writer = threading.Thread(target=write)
    writer.start()
    while b"line 000399\n" not in followed:
        piece = read_log("part", piece.end, 1000, piece.file)
        followed += piece.data
    writer.join()
    log.close()
    assert followed == b"".join(b"line %06d\n" % number for number in range(400))


def test_bytes_that_a_full_disk_refuses_are_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "part.log"
    file.symlink_to("/dev/full")
    log = RotatingLog(file, 1000, 1)
    log.write(b"lost\n")
    log.write(b"lost too\n")
    assert log.dropped == 14
    file.unlink()
    log.close()  # another file is opened
    log.write(b"written\n")
    log.close()
    assert file.read_bytes() == b"\n(14 bytes of this log could not be written)\nwritten\n"


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
