"""Ranks that Slurm's srun starts: they do the job of one process, and stop and go on as Slurm asks."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.home import own_home
from support.one_job import STEPS, is_the_job_of_one, pretraining
from support.slurm import slurm
from support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return pretraining(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm(Path(folder)) as environment:
        yield environment


def srun(cluster: dict[str, str], home: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Two tasks of one node."""
    return subprocess.Popen(
        ["srun", "--ntasks=2", "--job-name", home.name, sys.executable, "-m", "rondo", *arguments],
        env=cluster | {"RONDO_HOME": str(own_home(home)), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_tasks_do_the_job_of_one(
    cluster: dict[str, str], train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = srun(cluster, tmp_path / "two", *train)
    said, wrong = started.communicate(timeout=120)
    assert started.returncode == 0, wrong
    is_the_job_of_one(said, tmp_path / "two", tmp_path / "one", train, monkeypatch)


def test_a_signal_of_slurms_has_it_save_and_end_well(
    cluster: dict[str, str], train: list[str], tmp_path: Path
) -> None:
    """As `--signal=TERM@300` sends before a job's time is over."""
    home = tmp_path / "stopped"
    endless = [each.replace(f"steps={STEPS}", "steps=100000") for each in train]
    started = srun(cluster, home, *endless)
    wait_until(lambda: any(file.stat().st_size for file in (home / "jobs").glob("*/metrics.jsonl")), 120)
    subprocess.run(["scancel", "--signal=TERM", "--name", home.name], env=cluster, check=True, timeout=30)
    _, wrong = started.communicate(timeout=120)
    assert started.returncode == 0, wrong
    assert "is saved. Resume with" in wrong
    assert list(home.glob("jobs/*/checkpoints/step_*/manifest.json"))
