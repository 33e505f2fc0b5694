"""A synchronous run that is killed in any phase goes on, and ends with the bits of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rondo import models
from rondo.base.files import atomic_dir
from rondo.base.hashing import sha256_file
from rondo.parallel.crew import Crew, Paused
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 8

WORKER = """
import os, signal, sys, threading
from contextlib import contextmanager
from rondo.rl import clock, jobs
from rondo.rl.config import RlConfig
last, phase = int(sys.argv[2]), sys.argv[3]
timed = clock.Clock.__call__
counts = {}

@contextmanager
def deadly(self, name):
    counts[name] = counts.get(name, 0) + (name not in self.__dict__.setdefault("seen", set()))
    self.seen.add(name)
    if name == phase and counts[name] == last:
        threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with timed(self, name):
        yield

clock.Clock.__call__ = deadly

def end(step, metrics):
    if phase == "save" and step == last:
        threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if phase == "wait" and step >= last:
        threading.Event().wait(0.05)

jobs.run(jobs.plan(RlConfig.model_validate_json(sys.argv[1])), end)
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    return folder


def config(ground: Path, **changes: object) -> RlConfig:
    return RlConfig(
        model=str(ground / "model"),
        prompts_per_step=3,
        samples_per_prompt=4,
        steps=STEPS,
        lr=1e-2,
        kl=0.05,
        epochs=2,
        minibatches=2,
        eval_prompts=4,
        max_tokens=6,
        tokens_per_microbatch=256,
        save_every=2,
    ).model_copy(update=changes)


def worker(config: RlConfig, home: Path, last: int, phase: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "RONDO_HOME": str(own_home(home))}
    given = [config.model_dump_json(), str(last), phase]
    return subprocess.Popen([sys.executable, "-c", WORKER, *given], env=environment, stderr=subprocess.PIPE)


def here(config: RlConfig, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(home)))
        jobs.run(jobs.plan(config))


def job_of(home: Path) -> Path:
    (job,) = (home / "jobs").iterdir()
    return job


SAME = ("loss", "reward", "grad_norm", "weight_version", "reference_kl", "answer_tokens")


def test_killed_in_each_phase_and_resumed_is_bit_equal(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    for last, phase in ((3, "rollout"), (1, "known"), (2, "train"), (2, "push"), (6, "save")):
        assert worker(config(ground), shaken, last, phase).wait(120) == -signal.SIGKILL, phase
    here(config(ground), shaken, monkeypatch)
    here(config(ground), calm, monkeypatch)
    one, other = job_of(calm), job_of(shaken)
    assert one.name == other.name
    for file in (f"checkpoints/step_{STEPS}/__0_0.distcp", "export/model.safetensors"):
        assert sha256_file(one / file) == sha256_file(other / file)
    rows = [[json.loads(line) for line in (job / "metrics.jsonl").open()] for job in (one, other)]
    assert [row["step"] for row in rows[1]] == list(range(STEPS + 1))
    for mine, theirs in zip(*rows, strict=True):
        assert {name: mine.get(name) for name in SAME} == {name: theirs.get(name) for name in SAME}


def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    plan, crew = jobs.plan(config(ground, save_every=0)), Crew()

    def stop(step: int, metrics: object) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Paused, match=f"step 3 of {STEPS} is saved: resume me"):
        jobs.run(plan, stop, crew=crew)
    assert plan.job.state() == "paused"
    resumed: list[int] = []
    jobs.run(plan, lambda step, metrics: resumed.append(step))
    assert resumed == list(range(4, STEPS + 1))


def test_an_asynchronous_run_that_is_killed_goes_on(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = config(ground, mode="async", epochs=1, minibatches=1, kl=0.0)
    first = worker(told, tmp_path, 3, "save")
    assert first.wait(120) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    here(told, tmp_path, monkeypatch)
    assert time.monotonic() < deadline
    rows = [json.loads(line) for line in (job_of(tmp_path) / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert [row["weight_version"] <= row["step"] for row in rows[1:]] == [True] * STEPS
