"""Preparing data with real worker processes: killed, resumed, broken lines, and what comes out of it."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import full_worker
from rondo.base.errors import Conflict, InvalidRequest, NotFound, StorageError, Unavailable
from rondo.cli.main import main as rondo
from rondo.data.batching.sampler import DocumentSpan
from rondo.data.preparation import pool
from rondo.data.preparation.prepare import RECORDS, PrepareRequest, Progress, prepare
from rondo.data.storage.index import INDEX
from rondo.data.storage.shards import Shards, check_shards, read_index
from rondo.text.tokenizer import Tokenizer
from support.waiting import wait_until

TEXTS = [f"the cat sat {n} times on the mat " * (1 + n % 7) for n in range(300)]


def write_lines(path: Path, texts: list[str] = TEXTS) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def request(source: Path, out: Path, tokenizer: Path, **options: Any) -> PrepareRequest:
    return PrepareRequest([str(source)], tokenizer, str(out), part_bytes=4096, **options)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> tuple[Path, Path]:
    """(the text, its shards): several parts, and more than one shard of a part."""
    folder = tmp_path_factory.mktemp("prepared")
    text = write_lines(folder / "text.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        prepare(request(text, folder / "out", tokenizer_folder, workers=2, shard_bytes=30_000))
    return text, folder / "out"


def test_every_document_is_there_in_order_and_ends_with_its_separator(
    prepared: tuple[Path, Path], tokenizer_folder: Path
) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    shards = Shards(str(prepared[1]), read_index(str(prepared[1])))
    assert shards.index.documents == len(TEXTS)
    assert len({shard.name.rpartition("-")[0] for shard in shards.index.shards}) > 3
    assert len(shards.index.shards) > len({s.name.rpartition("-")[0] for s in shards.index.shards})
    for number in (0, 299, 7, 150):
        expected = [*tokenizer.encode(TEXTS[number]), tokenizer.eos_ids[0]]
        assert shards.document(number).tolist() == expected
        middle = DocumentSpan(0, number, 3, 7)
        ((tokens, weights),) = shards.read([middle])
        assert tokens.tolist() == expected[3:7]
        assert (len(weights), shards.valid(middle)) == (4, 3)
    check_shards(str(prepared[1]), shards.index)


def test_shards_are_plain_tars_of_numpy_arrays(prepared: tuple[Path, Path]) -> None:
    index = read_index(str(prepared[1]))
    lengths = np.load(prepared[1] / "lengths.npy")
    found = []
    for shard in index.shards:
        with tarfile.open(prepared[1] / shard.name) as tar:
            arrays = [np.load(io.BytesIO(tar.extractfile(member).read())) for member in tar]  # type: ignore[union-attr]
        assert len(arrays) == shard.documents
        found += arrays
    assert [len(array) for array in found] == lengths.tolist()
    assert {array.dtype for array in found} == {np.dtype("uint16")}
    assert sum(map(len, found)) == index.tokens


def test_the_same_command_again_does_nothing(prepared: tuple[Path, Path], tokenizer_folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in prepared[1].iterdir()}
    again = prepare(request(prepared[0], prepared[1], tokenizer_folder, shard_bytes=30_000))
    assert again == read_index(str(prepared[1]))
    assert before == {file: file.stat().st_mtime_ns for file in prepared[1].iterdir()}


def test_another_preparation_does_not_mix_with_what_is_there(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(Conflict, match=r"other options.*--replace"):
        prepare(request(prepared[0], prepared[1], tokenizer_folder, close=False))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(Conflict, match="not empty"):
        prepare(request(prepared[0], tmp_path / "mine", tokenizer_folder))
    with pytest.raises(Conflict, match="other things"):
        prepare(request(prepared[0], tmp_path / "mine", tokenizer_folder, replace=True))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import sys
from pathlib import Path
from rondo.data.preparation.prepare import PrepareRequest, prepare
source, tokenizer, out = sys.argv[1:]
prepare(PrepareRequest([source], Path(tokenizer), out, workers=2, part_bytes=4096, shard_bytes=30_000),
        lambda now: print(now.documents, flush=True))
"""


def test_killed_as_a_whole_and_resumed_with_one_worker_it_has_the_same_bytes(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    arguments = [str(prepared[0]), str(tokenizer_folder), str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE)
    assert process.stdout
    while not list((tmp_path / "out" / RECORDS).glob("part-*.json")):
        assert process.stdout.readline(), "it ended before it could be killed"
    workers = children(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not any(map(alive, workers)))
    assert not (tmp_path / "out" / INDEX).exists()
    with pytest.raises(InvalidRequest, match="not ended"):
        read_index(str(tmp_path / "out"))
    done = set((tmp_path / "out" / RECORDS).glob("part-*.json"))
    seen: list[Progress] = []
    prepare(request(prepared[0], tmp_path / "out", tokenizer_folder, shard_bytes=30_000), seen.append)
    assert contents(tmp_path / "out") == contents(prepared[1])
    assert seen or len(done) == len({s.name[:12] for s in read_index(str(prepared[1])).shards})


def test_a_worker_that_is_killed_is_replaced(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, killed = set(children(os.getpid())), list[int]()

    def kill_once(now: Progress) -> None:
        if not killed:
            killed.append(min(set(children(os.getpid())) - before))
            os.kill(killed[0], signal.SIGKILL)

    again = request(prepared[0], tmp_path / "out", tokenizer_folder, workers=2, shard_bytes=30_000)
    prepare(again, kill_once)
    assert contents(tmp_path / "out") == contents(prepared[1])
    assert set(children(os.getpid())) == before


def test_a_part_that_kills_its_workers_is_an_error_that_names_it(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.data.preparation.prepare.WORKER", "data.deadly_worker")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(Unavailable, match=r"text\.jsonl \(bytes 0 to 4096\) was killed by signal 9.*3 times"):
        prepare(request(prepared[0], tmp_path / "out", tokenizer_folder))


def test_a_full_disk_is_said_so_and_it_goes_on_once_there_is_room(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    again = request(prepared[0], out, tokenizer_folder, shard_bytes=30_000)
    with monkeypatch.context() as patch:
        patch.setattr("rondo.data.preparation.prepare.WORKER", "data.full_worker")
        patch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(StorageError, match=r"No space left to write .*shard-\d+-\d+\.tar") as error:
            prepare(again)
    assert error.value.code == "no_space"
    whole, left = contents(prepared[1]), contents(out)
    notes = [name for name in left if name.startswith(RECORDS)]
    shards = {name: left[name] for name in left.keys() - set(notes)}
    assert len(shards) == full_worker.SHARDS, "nothing of the shard that found no room is there"
    assert shards.items() <= whole.items()
    done = [json.loads((out / name).read_text())["tally"] for name in notes if name.endswith(".json")]
    seen: list[Progress] = []
    prepare(again, seen.append)
    assert 0 < sum(tally["documents"] for tally in done) <= seen[0].documents, "it is not done again"
    assert contents(out) == whole


def test_a_worker_that_says_nothing_is_not_waited_for(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.data.preparation.prepare.WORKER", "data.silent_worker")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(pool, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(pool, "START_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"said nothing .*3 times"):
        prepare(request(prepared[0], tmp_path / "out", tokenizer_folder))


def test_broken_lines_are_located_counted_and_bounded(tmp_path: Path, tokenizer_folder: Path) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS[:200]]
    lines[3], lines[150], lines[180] = "{", '{"text": 3}', '{"text": "\\ud800"}'
    lines[60] = '{"text": ""}'
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidRequest, match=r"x\.jsonl, line 4: not JSON"):
        prepare(request(tmp_path / "x.jsonl", tmp_path / "out", tokenizer_folder))
    with pytest.raises(InvalidRequest, match=r"more than the 2 broken .* line 4: .* line 151: .* line 181: "):
        prepare(request(tmp_path / "x.jsonl", tmp_path / "out", tokenizer_folder, max_broken=2))
    index = prepare(request(tmp_path / "x.jsonl", tmp_path / "out", tokenizer_folder, max_broken=3))
    assert [broken.where.rpartition(" ")[2] for broken in index.broken] == ["4", "151", "181"]
    (source,) = index.sources
    assert (source.documents, source.broken, source.empty) == (196, 3, 1)


def test_empty_data_are_an_error(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(InvalidRequest, match="empty"):
        prepare(request(tmp_path / "x.jsonl", tmp_path / "out", tokenizer_folder))
    (tmp_path / "x.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InvalidRequest, match="no document has a token"):
        prepare(request(tmp_path / "x.jsonl", tmp_path / "out", tokenizer_folder))
    with pytest.raises(NotFound, match=r"no data at .*nothing\.jsonl"):
        prepare(request(tmp_path / "nothing.jsonl", tmp_path / "out", tokenizer_folder))


def test_what_is_there_is_replaced_if_that_is_asked(tmp_path: Path, tokenizer_folder: Path) -> None:
    first = request(write_lines(tmp_path / "a.jsonl", TEXTS[:9]), tmp_path / "out", tokenizer_folder)
    prepare(first)
    (tmp_path / "out" / INDEX).write_text("{}")
    with pytest.raises(InvalidRequest, match="not the index"):
        prepare(first)
    other = write_lines(tmp_path / "b.jsonl", TEXTS[:5])
    index = prepare(request(other, tmp_path / "out", tokenizer_folder, replace=True))
    assert index.documents == 5
    check_shards(str(tmp_path / "out"), index)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-512])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
def test_damaged_shards_are_named(
    harm: Callable[[Path], None], tmp_path: Path, tokenizer_folder: Path
) -> None:
    text = write_lines(tmp_path / "x.jsonl", TEXTS[:20])
    out = tmp_path / "out"
    index = prepare(PrepareRequest([str(text)], tokenizer_folder, str(out)))
    harm(out / "shard-000000-000.tar")
    with pytest.raises(StorageError, match=r"shard-000000-000\.tar"):
        check_shards(str(out), index)
    if harm is not flip:
        with pytest.raises(StorageError, match=r"shard-000000-000\.tar"):
            Shards(str(out), index)
    flip(out / "lengths.npy")
    with pytest.raises(StorageError, match=r"lengths\.npy"):
        Shards(str(out), index)


def test_through_a_store_it_is_the_same(
    prepared: tuple[Path, Path], tokenizer_folder: Path, tmp_path: Path
) -> None:
    """`file://` takes the way of any object store."""
    url = f"file://{tmp_path}/out"
    options: dict[str, Any] = {"part_bytes": 4096, "shard_bytes": 30_000, "workers": 2}
    index = prepare(PrepareRequest([f"file://{prepared[0]}"], tokenizer_folder, url, **options))
    assert index.digest == read_index(str(prepared[1])).digest
    assert read_index(url) == index
    assert sorted(contents(tmp_path / "out")) == sorted(contents(prepared[1]))
    here, there = Shards(str(prepared[1]), index), Shards(url, index)
    pieces = [DocumentSpan(0, number, 1, 6) for number in (5, 77, 299)]
    assert [t.tolist() for t, _ in here.read(pieces)] == [t.tolist() for t, _ in there.read(pieces)]


def test_from_the_command_line(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.txt").write_text("the cat\n\nthe dog\n")
    command = [
        "data",
        "prepare",
        str(tmp_path / "x.txt"),
        "--tokenizer",
        str(tokenizer_folder),
        "--workers",
        "1",
    ]
    assert rondo([*command, "--out", str(tmp_path / "out"), "--text-unit", "line", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 2
    assert rondo(["data", "inspect", str(tmp_path / "out"), "--check"]) == 0
    assert "every shard is what the index says" in capsys.readouterr().out
    assert rondo([*command, "--out", str(tmp_path / "out"), "--part-size", "0"]) == 2
    assert "is not a whole number above 0" in capsys.readouterr().err
    assert rondo([*command, "--out", str(tmp_path / "out"), "--field", "txt=a"]) == 2
    assert "is not [NAME=]FIELD" in capsys.readouterr().err
