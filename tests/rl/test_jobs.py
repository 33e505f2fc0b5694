"""What makes an RL job the job that it is."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.base.errors import ConfigError, NotFound
from rondo.base.storage.files import atomic_dir
from rondo.jobs.job import Job
from rondo.models.fresh import make_scorer
from rondo.parallel.ranks.crew import RankSupervisor
from rondo.parallel.ranks.world import World
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


TWO = RankSupervisor(World(rank=1, size=2))
REFUSED: dict[str, dict[str, Any]] = {
    "rl.ray.engines": {"ray": {"engines": 1}},
    "rl.dynamic_sampling": {
        "dynamic_sampling": 2,
        "reward_model": {"model": "tiny"},
        "mode": "async",
    },
    "rl.critic.kind": {"algorithm": "ppo", "critic": {"kind": "shared"}, "layout": {"tp": 2}},
    "rl.layout.dp": {"layout": {"tp": 3}},
    "rl.learner": {"learner": "megatron", "adapter": {"kind": "lora"}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_several_ranks_do_not_support_is_refused_by_field(home: Path, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        jobs.plan(RlConfig(model="tiny", **REFUSED[field]), crew=TWO)
    assert refused.value.param == field
    assert refused.value.message.startswith(field.rpartition(".")[0])
    assert "train." not in refused.value.message
    assert not list((home.parent / "jobs").glob("*"))


def test_the_number_of_ranks_and_their_layout_do_not_change_the_job(home: Path) -> None:
    one = job_of({})
    for layout in ({"zero": 1}, {"tp": 2}, {"pp": 2}):
        config = RlConfig(model="tiny", layout=layout, rollout_ranks="all")
        found = jobs.plan(config, crew=TWO).job
        assert (found.path, found.writes) == (one.path, False)


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
