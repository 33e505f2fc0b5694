"""Ctrl-C and SIGTERM in every phase of a job: the same command resumes it exactly."""

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.conftest import STEPS, rl_command, train_command
from rondo.base.storage.hashing import sha256_file
from support.home import own_home
from support.nursery import Nursery

COMMANDS: dict[str, Callable[[Path], list[str]]] = {"train": train_command, "rl": rl_command}
ONCE = [
    # phase, which of its calls, the saved step or None if any
    ("load", 1, 0),
    ("resume", 1, 0),
    ("forward_backward", 3, None),
    ("optimizer", 3, None),
    ("save", 2, None),
    ("export", 1, STEPS),
]


def begin(nursery: Nursery, command: list[str], home: Path, *fault: object) -> int:
    environment = {"RONDO_HOME": str(own_home(home))}
    code = nursery.start("jobs._stopped:run", command, str(home / "said"), *fault, environment=environment)
    return nursery.wait(code)


def said(home: Path) -> str:
    return (home / "said").read_text()


def job_of(home: Path) -> Path:
    (spec,) = (home / "jobs").glob("*/spec.json")
    return spec.parent


def status_of(home: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((job_of(home) / "status.json").read_text())
    return found


@pytest.fixture(scope="module")
def calm(ground: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hash of the weights of each job without interruption."""
    hashes = {}
    for name, command in COMMANDS.items():
        home = tmp_path_factory.mktemp("calm")
        assert begin(nursery, command(ground), home) == 0, said(home)
        hashes[name] = weights(home)
    return hashes


def weights(home: Path) -> str:
    return sha256_file(job_of(home) / "export/model.safetensors")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("phase", "at", "step"), ONCE)
def test_ctrl_c_once(
    ground: Path,
    nursery: Nursery,
    calm: dict[str, str],
    tmp_path: Path,
    name: str,
    phase: str,
    at: int,
    step: int | None,
) -> None:
    command = COMMANDS[name](ground)
    assert begin(nursery, command, tmp_path, phase, at, "SIGINT") == 130
    assert f"Resume with:\n\n  {shlex.join(['rondo', *command])}\n" in said(tmp_path)
    assert status_of(tmp_path)["state"] == "paused"
    told = re.search(r"step (\d+) of \d+ is saved|stopped before the first step", said(tmp_path))
    assert told
    saved = int(told[1] or 0)
    if step is not None:
        assert saved == step
    manifest = job_of(tmp_path) / f"checkpoints/step_{saved}/manifest.json"
    assert manifest.is_file() or not saved
    assert begin(nursery, command, tmp_path) == 0, said(tmp_path)
    assert weights(tmp_path) == calm[name]
    assert status_of(tmp_path)["state"] == "succeeded"


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_stops_like_ctrl_c(
    ground: Path, nursery: Nursery, calm: dict[str, str], tmp_path: Path, name: str
) -> None:
    command = COMMANDS[name](ground)
    assert begin(nursery, command, tmp_path, "optimizer", 3, "SIGTERM", "SIGTERM") == 0
    assert "is saved. Resume with:" in said(tmp_path)
    assert begin(nursery, command, tmp_path) == 0, said(tmp_path)
    assert weights(tmp_path) == calm[name]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("phase", "at"), [("forward_backward", 3), ("export", 1)])
def test_ctrl_c_twice_aborts(
    ground: Path, nursery: Nursery, calm: dict[str, str], tmp_path: Path, name: str, phase: str, at: int
) -> None:
    command = COMMANDS[name](ground)
    assert begin(nursery, command, tmp_path, phase, at, "SIGINT", "SIGINT") == 130
    assert "Resume" in said(tmp_path)
    assert status_of(tmp_path)["state"] == "paused"
    assert begin(nursery, command, tmp_path) == 0, said(tmp_path)
    assert weights(tmp_path) == calm[name]


def test_an_abort_does_not_wait_for_a_save(ground: Path, nursery: Nursery, tmp_path: Path) -> None:
    """The save takes an hour; the job ends long before."""
    home = own_home(tmp_path)
    environment = {"RONDO_HOME": str(home)}
    begin_time = time.monotonic()
    pid = nursery.start(
        "jobs._stopped:abort_in_save", train_command(ground), str(tmp_path / "said"), environment=environment
    )
    assert nursery.wait(pid) == 130
    assert time.monotonic() - begin_time < 1800
    assert "aborted. Resume from the last checkpoint with:" in said(tmp_path)
