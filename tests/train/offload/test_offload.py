"""States that wait on a disk: the same bits, memory that is given back, and errors that say what to do."""

import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.base.errors import ConfigError, Conflict, StorageError
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from rondo.train.offload import optimizer_state
from rondo.train.offload.disk_tensors import PAGE, DiskTensorPool
from support.layouts import rows_of
from support.tiny import tiny_model
from support.waiting import scaled


def trained(folder: Path | None, steps: int = 3, kind: str = "optimizer", **changes: Any) -> Learner:
    away = {} if folder is None else {"offload": kind, "offload_to": str(folder)}
    learner = Learner(tiny_model(), OptimConfig(lr=1e-2, **away, **changes))
    for step in range(steps):
        learner.forward_backward(rows_of(step), cross_entropy)
        learner.optim_step()
    return learner


def states(learner: Learner) -> list[Tensor]:
    moments = [x for state in learner.optimizer.state.values() for x in state.values()]
    return [*learner.model.parameters(), *learner.computing.parameters(), *moments]


CASES = [
    {},
    {"optimizer": "muon"},
    {"precision": "bfloat16"},
    {"precision": "bfloat16", "ema": 0.9},
    {"precision": "float16"},
]


@pytest.mark.parametrize("kind", ["optimizer", "all"])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_what_waits_on_a_disk_is_the_same_to_the_bit(
    kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_state, "BLOCK", 5000)  # many blocks
    ours, theirs = states(trained(tmp_path, kind=kind, **changes)), states(trained(None, **changes))
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))
    assert not list(tmp_path.iterdir()), "a process that is killed leaves nothing"


class Begun:
    """How many parts have begun to be read; `wait` until so many have, by whoever reads beside the caller."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._more, self._seen = threading.Semaphore(0), 0
        bring = DiskTensorPool.bring

        def counted(shelf: DiskTensorPool, tensors: Iterable[Tensor]) -> None:
            self._more.release()
            bring(shelf, tensors)

        monkeypatch.setattr(DiskTensorPool, "bring", counted)

    def wait(self, count: int) -> None:
        while self._seen < count:
            assert self._more.acquire(timeout=scaled(20)), f"{self._seen} of {count} parts have begun to come"
            self._seen += 1


def test_the_next_block_comes_while_one_is_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No update begins before the block after it does."""
    monkeypatch.setattr(optimizer_state, "BLOCK", 5000)
    learner = trained(tmp_path, steps=1)
    learner.forward_backward(rows_of(1), cross_entropy)
    assert learner.offloaded is not None
    blocks, updates, begun = len(list(learner.offloaded._blocks())), 0, Begun(monkeypatch)
    update = learner.optimizer.step

    def once_the_next_comes() -> None:
        nonlocal updates
        updates += 1
        begun.wait(min(updates + 1, blocks))
        update()

    monkeypatch.setattr(learner.optimizer, "step", once_the_next_comes)
    learner.optim_step()
    assert updates == blocks > 3


def test_a_layer_comes_while_the_one_before_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = {"offload": "all", "offload_to": str(tmp_path)}
    learner = Learner(tiny_model(num_hidden_layers=4), OptimConfig(**away))
    begun, computed = Begun(monkeypatch), 0

    def once_the_next_comes(*given: object) -> None:
        nonlocal computed
        computed += 1
        begun.wait(min(computed + 1, 4))

    for layer in learner.computing.layers:
        layer.register_forward_pre_hook(once_the_next_comes)
    learner.logprobs(rows_of(0, count=1)[:1])
    assert computed == 4


def test_saved_and_loaded_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "a"), trained(tmp_path / "b", steps=0)
    folder = tmp_path / "saved"
    folder.mkdir()
    one.save(folder)
    other.load(folder, one.step)
    for learner in (one, other):
        learner.forward_backward(rows_of(9), cross_entropy)
        learner.optim_step()
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trained(tmp_path, steps=0)
    learner.forward_backward(rows_of(0), cross_entropy)

    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left"):
        learner.optim_step()


def test_a_shelf_gives_memory_back_and_has_what_was_written(tmp_path: Path) -> None:
    shelf = DiskTensorPool(tmp_path)
    x = shelf.place(torch.arange(100_000.0))
    x += 1
    shelf.let_go([x])
    assert resident(x) == 0
    shelf.bring([x])
    assert resident(x) >= x.nbytes // 2, "as far as the kernel reads ahead"
    assert torch.equal(x, torch.arange(100_000.0) + 1)
    assert shelf.nbytes == -(-x.nbytes // PAGE) * PAGE


def resident(x: Tensor) -> int:
    """Bytes of the tensor that this process has mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    inside = False
    for line in lines:
        if line[0].islower() or line[0].isdigit():
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                start, stop = (int(each, 16) for each in first.split("-"))
                inside = start <= x.data_ptr() < stop
        if inside and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("not mapped")


def test_a_cpus_learner_needs_a_disk() -> None:
    for kind in ("optimizer", "all"):
        with pytest.raises(ConfigError, match="which folder") as error:
            Learner(tiny_model(), OptimConfig(offload=kind))
        assert error.value.param == "train.offload_to"


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_a_learner_that_was_away_goes_on_to_the_bit(
    changes: dict[str, Any], weights: bool, tmp_path: Path
) -> None:
    stayed, went = (trained(None, **changes) for _ in range(2))
    identities = list(map(id, went.model.parameters()))
    went.offload(str(tmp_path), weights=weights)
    with pytest.raises(Conflict, match="call onload first"):
        went.optim_step()
    with pytest.raises(Conflict, match="call onload first"):
        went.offload(str(tmp_path))
    went.onload()
    went.onload()
    assert list(map(id, went.model.parameters())) == identities
    for learner in (stayed, went):
        learner.forward_backward(rows_of(7), cross_entropy)
        learner.optim_step()
    assert all(map(torch.equal, states(stayed), states(went)))


def test_a_learner_that_is_away_is_not_in_memory(tmp_path: Path) -> None:
    learner = trained(None)
    learner.offload(str(tmp_path))
    for x in states(learner):
        if x.ndim:
            assert resident(x.detach()) == 0


def test_what_cannot_go_away_says_why(tmp_path: Path) -> None:
    learner = trained(None)
    with pytest.raises(ConfigError, match="name a folder"):
        learner.offload("host")
    learner.forward_backward(rows_of(0), cross_entropy)
    with pytest.raises(Conflict, match="call optim_step first"):
        learner.offload(str(tmp_path))
    with pytest.raises(ConfigError, match="elsewhere already"):
        trained(tmp_path).offload(str(tmp_path))


def test_an_empty_part_takes_no_room(tmp_path: Path) -> None:
    shelf = DiskTensorPool(tmp_path)
    assert shelf.place(torch.zeros(0, 8)).shape == (0, 8)
    assert shelf.nbytes == 0
