import os
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.base.errors import InvalidRequest, StorageError
from rondo.data.storage.cache import PARTIAL, Cache
from rondo.data.storage.places import SourceFile


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(100, tmp_path / "cache")


def stored(tmp_path: Path, name: str, size: int) -> SourceFile:
    (tmp_path / name).write_bytes(name[:1].encode() * size)
    return SourceFile(f"file://{tmp_path}/{name}", size, "1")


def held(cache: Cache) -> list[str]:
    return sorted(path.name.partition("-")[2] for path in cache.folder.iterdir() if path.name[0] != ".")


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, cache: Cache) -> None:
    files = [stored(tmp_path, name, 40) for name in "abc"]
    a = cache.fetch(files[0])
    b = cache.fetch(files[1])
    os.utime(a, (1, 1))
    os.utime(b, (2, 2))
    assert cache.fetch(files[0]) == a
    reader = b.open("rb")
    cache.fetch(files[2])
    assert held(cache) == ["a", "c"]
    assert reader.read() == b"b" * 40, "who has it open keeps it"
    reader.close()


def test_another_version_of_an_object_is_another_object(tmp_path: Path, cache: Cache) -> None:
    file = stored(tmp_path, "a", 10)
    assert cache.fetch(file) != cache.fetch(SourceFile(file.name, 10, "2"))


def test_what_is_too_large_or_damaged_is_an_error(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(InvalidRequest, match="cache_bytes"):
        cache.fetch(stored(tmp_path, "a", 101))
    file = stored(tmp_path, "b", 10)
    with pytest.raises(StorageError, match="damaged"):
        cache.fetch(file, sha256="0" * 64)
    with pytest.raises(StorageError, match="damaged"):
        cache.fetch(SourceFile(file.name, 11, "1"))
    assert held(cache) == []


def test_what_a_killed_process_left_half_done_is_removed_and_fetched_again(
    tmp_path: Path, cache: Cache
) -> None:
    file = stored(tmp_path, "a", 40)
    path = cache.fetch(file)
    part = path.with_name(path.name + PARTIAL)
    path.rename(part)
    assert cache.fetch(file) == path
    part.write_bytes(b"x" * 90)
    cache.fetch(stored(tmp_path, "b", 50))
    assert held(cache) == ["b"] or not part.exists()


SCRIPT = """
import sys
from pathlib import Path
from rondo.data.storage.cache import Cache
from rondo.data.storage.places import SourceFile
cache, files = Cache(100, Path(sys.argv[1])), [SourceFile(name, 25, "1") for name in sys.argv[2:]]
print(all(cache.fetch(file).read_bytes() == file.name[-1].encode() * 25 for _ in range(20) for file in files))
"""


def test_several_processes_share_it(tmp_path: Path) -> None:
    """Each object is whole for all of them. All fit, since what was fetched may go again before it is opened."""
    files = [stored(tmp_path, name, 25) for name in "abcd"]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), *(file.name for file in files)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [b"True\n"] * 3
    assert held(Cache(100, tmp_path / "cache")) == list("abcd")
