"""Data sets by name: which files are a split, and where they come from."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from rondo.base.errors import NotFound, Unavailable
from rondo.data.input.formats import SUFFIXES
from rondo.data.input.sources import read_records
from rondo.data.storage.places import find_files
from rondo.hub.datasets import ensure_dataset, pull_dataset
from rondo.hub.names import HubName
from support.hub import FakeHub, fake_hub

__all__ = ["fake_hub"]


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def found(split: str = "") -> list[str]:
    return [file.name for file in ensure_dataset(HubName("dataset", "org/data", part=split), SUFFIXES)]


def test_splits_by_file_names(fake_hub: FakeHub) -> None:
    files = {
        "data/train-00000.jsonl": lines("a"),
        "data/train-00001.jsonl": lines("b"),
        "dev.jsonl": lines("c"),
    }
    fake_hub.repo("datasets/org/data", {**files, "test_set.jsonl": lines("d"), ".hidden/x.jsonl": b""})
    assert found() == ["train-00000.jsonl", "train-00001.jsonl"]
    assert found("validation") == ["dev.jsonl"]
    assert found("test") == ["test_set.jsonl"]
    assert [each["text"] for each in read_records("org/data")] == ["a", "b"]
    assert [each["text"] for each in read_records("org/data@main:test")] == ["d"]
    with pytest.raises(NotFound, match=r"no split 'extra'. Splits: org/data:train, org/data:validation"):
        found("extra")


def test_files_without_a_split_are_for_training(fake_hub: FakeHub) -> None:
    fake_hub.repo("datasets/org/data", {"part-1.jsonl": lines("a"), "part-2.jsonl": lines("b")})
    assert found() == ["part-1.jsonl", "part-2.jsonl"]


def test_one_format_of_several(fake_hub: FakeHub) -> None:
    fake_hub.repo("datasets/org/data", {"a.jsonl": lines("a"), "b.jsonl": lines("b"), "all.txt": b"a b"})
    assert found() == ["a.jsonl", "b.jsonl"]


CARD = b"""---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test-*]
- config_name: socratic
  data_dir: socratic
---
# Problems
"""


def test_configurations_of_the_card(fake_hub: FakeHub) -> None:
    names = ["main/train-0.jsonl", "main/test-0.jsonl", "socratic/train.jsonl"]
    repo = fake_hub.repo("datasets/org/data", {name: lines(name) for name in names} | {"README.md": CARD})
    with pytest.raises(
        NotFound, match=r"several configurations.*org/data:main/train, org/data:socratic/train"
    ):
        found()
    assert found("main/test") == ["test-0.jsonl"]
    assert found("socratic/train") == ["train.jsonl"]
    default = CARD.replace(b"name: main\n", b"name: main\n  default: true\n")
    repo.commit({name: lines(name) for name in names} | {"README.md": default})
    pull_dataset(HubName("dataset", "org/data"), SUFFIXES)
    assert found() == ["train-0.jsonl"]


@pytest.mark.parametrize("head", [b"---\nconfigs: 3\n---", b"---\n: [\n---", b"no head", b"\xff\xfe"])
def test_unusable_heads_of_the_card(fake_hub: FakeHub, head: bytes) -> None:
    fake_hub.repo("datasets/org/data", {"train.jsonl": lines("a"), "README.md": head})
    assert found() == ["train.jsonl"]


def test_the_cache_works_offline(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train.jsonl": lines("a"), "test.jsonl": lines("b"), "README.md": b"# Data"}
    fake_hub.repo("datasets/org/data", files)
    assert found() == ["train.jsonl"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert found() == ["train.jsonl"]
    with pytest.raises(Unavailable, match="rondo pull org/data --dataset"):
        found("test")


def test_parquet(fake_hub: FakeHub) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["a", "b"]}), out)
    fake_hub.repo("datasets/org/data", {"default/train/0000.parquet": out.getvalue()})
    assert [each["text"] for each in read_records("org/data:train")] == ["a", "b"]


def test_a_repository_without_readable_files(fake_hub: FakeHub) -> None:
    fake_hub.repo("datasets/org/data", {"data.py": b"", "audio/train.wav": b""})
    with pytest.raises(NotFound, match=r"no files in a readable format.*org/data@refs/convert/parquet"):
        found()


def test_local_files_come_first(fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "data").mkdir()
    (tmp_path / "org" / "data" / "mine.jsonl").write_bytes(lines("mine"))
    monkeypatch.chdir(tmp_path)
    assert [each["text"] for each in read_records("org/data")] == ["mine"]
    with pytest.raises(NotFound, match=r"no data at org/other\.jsonl"):
        find_files("org/other.jsonl", SUFFIXES)
    assert fake_hub.requests == []
    with pytest.raises(NotFound, match=r"no file or folder org/other here.*no data set 'org/other'"):
        find_files("org/other", SUFFIXES)
