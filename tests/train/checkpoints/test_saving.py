"""Checkpoints: whole or absent, those that stay, what is torn or damaged, and what torch's own reader makes of one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from rondo.base.errors import StorageError
from rondo.train.checkpoints import saving
from rondo.train.checkpoints.checkpoint import Keep, existing
from rondo.train.checkpoints.saving import Checkpoints
from rondo.train.loop import rating
from support.full_disk import files_up_to

TENSORS = {"model/a": torch.arange(12.0).view(3, 4), "model/b": torch.tensor(2.0, dtype=torch.bfloat16)}


def save(folder: Path, *steps: int, keep: Keep | None = None, values: Any = None) -> Checkpoints:
    saved = Checkpoints(str(folder), keep or Keep(10))
    for step in steps:
        saved.save(TENSORS, step, {"position": {"at": step}}, (values or {}).get(step))
    saved.wait()
    return saved


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in existing(str(folder))]


def test_torchs_own_converter_reads_it(tmp_path: Path) -> None:
    save(tmp_path, 3)
    dcp_to_torch_save(tmp_path / "step_3", tmp_path / "one.pt")
    found: dict[str, Tensor] = torch.load(tmp_path / "one.pt")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_what_is_saved_is_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    x = torch.zeros(1000)
    saved = Checkpoints(str(tmp_path), Keep())
    for step in (1, 2):
        saved.save({"model/x": x}, step, {})
        x += 1
    saved.wait()
    for step in (1, 2):
        dcp_to_torch_save(tmp_path / f"step_{step}", tmp_path / "one.pt")
        assert torch.load(tmp_path / "one.pt")["model/x"].eq(step - 1).all()
    assert saved.spent.keys() == {"save_stall", "save_seconds"}


def test_damaged_and_torn_ones_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = save(tmp_path, 2, 4, 6, 8)

    def newest() -> int | None:
        caplog.clear()
        found = saved.newest()
        return found and found.step

    found = saved.newest()
    assert found is not None
    assert (found.step, found.state()) == (8, {"position": {"at": 8}})
    data = tmp_path / "step_8/__0_0.distcp"
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 1
    data.write_bytes(raw)
    assert newest() == 6
    assert f"{data} does not match its manifest" in caplog.text
    (tmp_path / "step_6/.metadata").unlink()
    assert newest() == 4
    assert f"{tmp_path}/step_6 lacks .metadata: the checkpoint is torn" in caplog.text
    (tmp_path / "step_4/manifest.json").write_text('{"sha')
    assert newest() == 2
    assert "step_4/manifest.json does not match" in caplog.text
    (tmp_path / "step_2/manifest.json").unlink()
    assert newest() is None


def test_the_last_and_the_best_stay(tmp_path: Path) -> None:
    values = {1: 0.5, 2: 0.9, 3: 0.1, 4: None, 5: 0.7, 6: 0.8}
    save(tmp_path, *values, keep=Keep(2, 2), values=values)
    assert steps(tmp_path) == [6, 5, 3, 1]
    (tmp_path / "step_9").mkdir()  # torn
    save(tmp_path, 7, keep=Keep(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_7"]


def test_a_name_that_is_taken_is_written_anew(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "step_3/left.distcp").write_bytes(b"of another run")
    saved = save(tmp_path, 3)
    assert not (tmp_path / "step_3/left.distcp").exists()
    assert saved.newest() is not None


def test_a_full_disk_is_said_so_and_leaves_the_one_before(tmp_path: Path) -> None:
    saved = save(tmp_path, 1)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "step_1").iterdir()}
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    real = open

    def none_left(name: Any, *mode: Any, **more: Any) -> Any:
        return real(full if str(name).endswith(".distcp") else name, *mode, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", none_left)
        saved.save({"model/x": torch.ones(1_000_000)}, 2, {})
        with pytest.raises(StorageError, match=r"No space left to write .*step_2"):
            saved.wait()
    assert {path.name: path.read_bytes() for path in (tmp_path / "step_1").iterdir()} == whole
    assert not (tmp_path / "step_2").exists()
    found = saved.newest()
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("kilobytes", [0, 4, 100, 3000, 3900])
def test_a_disk_that_is_full_within_a_file_is_said_so(tmp_path: Path, kilobytes: int) -> None:
    """The kernel refuses the write amid torch's zip format, whose writer then speaks of a position in the file."""
    saved = save(tmp_path, 1)
    with files_up_to(kilobytes << 10):
        saved.save({"model/x": torch.ones(500_000), "model/y": torch.ones(500_000)}, 2, {})
        with pytest.raises(StorageError, match=r"No space left to write .*step_2.*Free some space") as caught:
            saved.wait()
    assert caught.value.code == "no_space"
    assert steps(tmp_path) == [1]
    save(tmp_path, 2)
    assert steps(tmp_path) == [2, 1]


def test_an_error_in_the_thread_is_raised_by_the_next_step(tmp_path: Path) -> None:
    saved = Checkpoints(str(tmp_path / "file"), Keep())
    (tmp_path / "file").write_text("no folder")
    saved.save(TENSORS, 1, {})
    with pytest.raises(StorageError, match="Cannot write"):
        while True:
            saved.check()


def test_the_manifest_is_plain(tmp_path: Path) -> None:
    save(tmp_path, 1, values={1: 0.25})
    manifest = json.loads((tmp_path / "step_1/manifest.json").read_text())
    assert (manifest["step"], manifest["value"]) == (1, 0.25)
    files = {path.name for path in (tmp_path / "step_1").iterdir()}
    assert manifest["sha256"].keys() == files - {"manifest.json"}
    shutil.rmtree(tmp_path / "step_1")


def test_a_copy_beside_them_is_nobodys_business(tmp_path: Path) -> None:
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step_1", tmp_path / "step_1_backup")
    save(tmp_path, 2, 3, keep=Keep(1))
    assert steps(tmp_path) == [3]
    assert (tmp_path / "step_1_backup").is_dir()


def test_a_broken_one_ahead_takes_nobodys_place(tmp_path: Path) -> None:
    save(tmp_path, 30)
    save(tmp_path, 20, 25, keep=Keep(1))
    assert steps(tmp_path) == [30, 25]


def test_what_cannot_be_removed_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)

    def prune(*given: object) -> None:
        raise StorageError("not allowed")

    monkeypatch.setattr(saving, "prune", prune)
    save(tmp_path, 2, keep=Keep(1))
    assert steps(tmp_path) == [2, 1]
    assert "not allowed" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_number_is_no_rating(value: float) -> None:
    assert rating({"loss": value}, "loss") is None
    assert rating({"score": 2.0}, "+score") == -2.0
