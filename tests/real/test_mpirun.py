"""Ranks that Open MPI's own launcher starts: they do the job of one process, and an error is said once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.home import own_home
from support.one_job import is_the_job_of_one, pretraining
from support.ports import free_port

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return pretraining(tmp_path_factory.mktemp("ground"))


def mpirun(home: Path, ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    told = {"RONDO_HOME": str(own_home(home)), "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "rondo", *arguments],
        env=os.environ | allowed | told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_two_ranks_do_the_job_of_one(
    train: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = mpirun(tmp_path / "two", 2, *train)
    assert done.returncode == 0, done.stderr
    is_the_job_of_one(done.stdout, tmp_path / "two", tmp_path / "one", train, monkeypatch)


def test_what_is_wrong_ends_all_ranks_and_is_said_once(train: list[str], tmp_path: Path) -> None:
    done = mpirun(tmp_path, 2, *train, "--train.layout.tp=3")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "dp 1 x tp 3 x pp 1 x cp 1 is 3, and there are 2 ranks" in said[0]
