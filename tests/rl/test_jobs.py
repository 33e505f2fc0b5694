"""What makes an RL job the job that it is."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.base.errors import NotFound
from rondo.base.storage.files import atomic_dir
from rondo.cli.main import main
from rondo.jobs.job import Job
from rondo.models.fresh import make_scorer
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

BESIDE: dict[str, dict[str, Any]] = {
    "teacher": {"distill": {"teacher": "other"}},
    "reward model": {"reward_model": {"model": "other"}},
    "critic": {"algorithm": "ppo", "critic": {"model": "other"}},
}


def leave(folder: Path, seed: int, scores: bool = False) -> None:
    model = tiny_model(seed=seed)
    if scores:
        make_scorer(model, seed=seed)
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_dir(folder) as inside:
        models.save_into(model, inside)
        tiny_tokenizer().save(inside)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    leave(tmp_path / "models" / "tiny", 0)
    return tmp_path / "models"


def job_of(settings: dict[str, Any]) -> Job:
    return jobs.plan(RlConfig(model="tiny", **settings)).job


LAUNCHERS = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    "srun": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_several_processes_are_refused(
    home: Path, launcher: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (LAUNCHERS[launcher] | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    assert main(["rl", "--model", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "has started 2: start it without the launcher" in said
    assert not list((home.parent / "jobs").glob("*"))


def test_a_launcher_of_one_process_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert job_of({}).path.parent == home.parent / "jobs"


@pytest.mark.parametrize("who", BESIDE)
def test_another_model_of_the_same_name_is_another_job(home: Path, who: str) -> None:
    settings, scores = BESIDE[who], who == "reward model"
    leave(home / "other", 1, scores)
    first = job_of(settings)
    leave(home / "other", 2, scores)
    second = job_of(settings)
    assert first != second
    (home / "other").rename(home / "moved")
    (section,) = (section for section in settings if section != "algorithm")
    (name,) = settings[section]
    assert job_of(settings | {section: {name: str(home / "moved")}}) == second, "wherever it is"


def test_a_model_that_is_not_there_is_said_with_its_setting(home: Path) -> None:
    with pytest.raises(NotFound, match=r"rl\.distill\.teacher: There is no model 'other'") as caught:
        job_of(BESIDE["teacher"])
    assert caught.value.param == "rl.distill.teacher"
