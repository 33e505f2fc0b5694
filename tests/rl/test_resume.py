"""A synchronous run that is killed in any phase goes on, and ends with the bits of one that was not."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.parallel.ranks.crew import Paused, RankSupervisor
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop_config import EvalConfig
from support.home import own_home
from support.nursery import Nursery
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 8
SLOW = """
import asyncio, zlib
from rondo.rl.tasks.custom import Custom

def make(random):
    return f"say {random.randint(0, 999)}", {}

async def grade(facts, answer):
    await asyncio.sleep(0.01)
    return zlib.crc32(answer.encode()) % 5

TASK = Custom(make, grade)
"""
"""Rewards that hang on the whole answer, from a grader that is waited for."""
KILLS = [
    ("evaluate", 1),
    ("rollout", 3),
    ("score", 2),
    ("known", 1),
    ("train", 2),
    ("push", 3),
    ("store", 2),
    ("log", 4),
    ("restore", 1),
    ("save", 1),
    ("manifest", 1),
    ("manifest", 2),
    ("leave", 1),
]
"""In which phase, and in which time that it comes."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(["rl._killed"]) as nursery:
        yield nursery


def config(ground: Path, **changes: object) -> RlConfig:
    return RlConfig(
        model=str(ground / "model"),
        task=f"{ground / 'slow.py'}:TASK",
        prompts_per_step=3,
        samples_per_prompt=4,
        steps=STEPS,
        lr=1e-2,
        kl=0.05,
        epochs=2,
        minibatches=2,
        eval_prompts=4,
        evaluate=EvalConfig(every=3),
        max_tokens=6,
        tokens_per_microbatch=256,
        save_every=2,
    ).model_copy(update=changes)


def begin(nursery: Nursery, config: RlConfig, home: Path, *killed: object) -> int:
    environment = {"RONDO_HOME": str(own_home(home))}
    return nursery.start("rl._killed:run", config.model_dump_json(), *killed, environment=environment)


def job_of(home: Path) -> Path:
    (job,) = (home / "jobs").iterdir()
    return job


def rows_of(home: Path) -> list[dict[str, float]]:
    with (job_of(home) / "metrics.jsonl").open() as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def calm(ground: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run that nothing happened to."""
    home = tmp_path_factory.mktemp("calm")
    assert nursery.wait(begin(nursery, config(ground), home)) == 0
    return home


def check_same(calm: Path, shaken: Path) -> None:
    """Weights, optimizer, what is exported, every rollout, and what was measured but for the time it took."""
    one, other = job_of(calm), job_of(shaken)
    assert one.name == other.name
    rollouts = [f"rollouts/step_{step}.zip" for step in range(1, STEPS + 1)]
    for file in (f"checkpoints/step_{STEPS}/__0_0.distcp", "export/model.safetensors", *rollouts):
        assert sha256_file(one / file) == sha256_file(other / file), file
    rows = rows_of(calm), rows_of(shaken)
    assert [row["step"] for row in rows[1]] == list(range(STEPS + 1))
    for mine, theirs in zip(*rows, strict=True):
        assert _untimed(mine) == _untimed(theirs)


TIMES = ("seconds", "hidden/", "tokens_per_second", "mfu", "peak_flops", "memory/")


def _untimed(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith(TIMES)}


def test_killed_in_each_phase_and_resumed_is_bit_equal(
    ground: Path, calm: Path, nursery: Nursery, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for phase, nth in KILLS:
        ended = nursery.wait(begin(nursery, config(ground), home, phase, nth))
        if ended == 0:  # what is saved beside the steps was so quick that the phase did not come again
            check_same(calm, home)
            home = tmp_path / phase
            ended = nursery.wait(begin(nursery, config(ground), home, phase, nth))
        assert ended == -signal.SIGKILL, phase
    assert nursery.wait(begin(nursery, config(ground), home)) == 0
    check_same(calm, home)


def test_killed_at_random_moments_and_resumed_is_bit_equal(
    ground: Path, calm: Path, nursery: Nursery, tmp_path: Path
) -> None:
    moments = random.Random(7)
    for _ in range(4):
        pid = begin(nursery, config(ground), tmp_path)
        time.sleep(moments.uniform(0.05, 0.6))
        os.kill(pid, signal.SIGKILL)
        assert nursery.wait(pid) in (0, -signal.SIGKILL)
    assert nursery.wait(begin(nursery, config(ground), tmp_path)) == 0
    check_same(calm, tmp_path)


def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    plan, crew = jobs.plan(config(ground, save_every=0)), RankSupervisor()

    def stop(step: int, metrics: object) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Paused, match=f"step 3 of {STEPS} is saved"):
        jobs.run(plan, stop, crew=crew)
    assert plan.job.state() == "paused"
    resumed: list[int] = []
    jobs.run(plan, lambda step, metrics: resumed.append(step))
    assert resumed == list(range(4, STEPS + 1))


def test_an_asynchronous_run_that_is_killed_goes_on(ground: Path, nursery: Nursery, tmp_path: Path) -> None:
    told = config(ground, mode="async", epochs=1, minibatches=1, kl=0.0)
    for phase in ("rollout", "train", "push", "manifest"):
        assert nursery.wait(begin(nursery, told, tmp_path, phase, 2)) == -signal.SIGKILL, phase
    assert nursery.wait(begin(nursery, told, tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert all(row["stale_max"] <= told.max_staleness for row in rows[1:])
