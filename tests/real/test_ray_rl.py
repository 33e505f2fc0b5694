"""Roles that Ray places: the engine on one node of a cluster, the learner on another."""

import json
from pathlib import Path

import pytest

from rondo import models
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from support.home import own_home
from support.peers import run_peer
from support.served import write_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"


def test_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the very one that is made here, in one process: with the same seeds, in deterministic mode, and though
    its learner, an engine's server and an engine's actor are killed on the way."""
    home, model = own_home(tmp_path / "home"), write_model(tmp_path / "tiny")
    told = {"PYTHONPATH": str(SOURCES), "RONDO_HOME": str(home), "RAY_AUTH_MODE": "disabled"}
    found = json.loads(run_peer("ray", HERE / "_ray_rl.py", model, **told).splitlines()[-1])
    assert len(set(found["nodes"].values())) == 2
    assert found["nodes"].keys() == {"learner", "engine0"}
    steps = [step for step, _ in found["seen"]]
    assert steps == sorted(steps)
    assert steps[-1] == 30
    learner, server, engine = found["lost"]
    assert "a role of this run was lost" in learner
    assert "ended with status -9" in server
    assert "a role of this run was lost" in engine
    flag, room, cluster = found["errors"]
    assert "an engine did not start" in flag
    assert "engine.nothing" in flag
    assert "the Ray cluster has no room for 2 roles of {'CPU': 1.0, 'GPU': 1.0}" in room
    assert "there is no Ray cluster at 127.0.0.1:9: start one with `ray start --head`" in cluster
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "here")))
    job = home / "jobs" / found["job"]
    assert Path(found["left"]) == job / "export"
    config = json.loads((job / "spec.json").read_text())["config"]
    plan = jobs.plan(RlConfig(**config, model=str(model)))
    assert plan.job.name == job.name, "where its roles are is nothing of the job's"
    own = models.load(jobs.run(plan))
    for mine, theirs in zip(own.parameters(), models.load(job / "export").parameters(), strict=True):
        assert mine.equal(theirs)
