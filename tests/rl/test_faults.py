"""What breaks while a job runs has its stated outcome (docs/rl.md, "When something fails"), and the weights are those
of a run in which nothing broke, or the run ends with the reason and the same command goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rondo import models
from rondo.base.errors import StorageError, Unavailable
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.engine.core import EngineCore
from rondo.graders import Sample, Score
from rondo.graders.execution.python import PythonGrader
from rondo.graders.sandbox.isolation import isolation
from rondo.jobs.job import Job
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.record.store import steps_in
from rondo.rl.rollout.types import RlStep
from rondo.rl.tasks.registry import task
from rondo.rl.tasks.types import AnyTask
from rondo.train.learner.learner import Learner
from rondo.weights.in_place import InPlace
from support.disk import resize, small_disk
from support.home import own_home
from support.processes import wait_until_gone
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

STEPS = 4
CONFIG = RlConfig(
    prompts_per_step=3,
    samples_per_prompt=4,
    steps=STEPS,
    lr=1e-2,
    eval_prompts=4,
    max_tokens=6,
    tokens_per_microbatch=256,
    save_every=1,
)


class Graded:
    """The task `reverse`, with another grader."""

    name, max_tokens = "graded", 6
    prompts = staticmethod(task("reverse").prompts)

    def __init__(self, score: Callable[[Sample], Any]) -> None:
        self._score = score

    async def score(self, sample: Sample) -> Score:
        found: Score = await self._score(sample)
        return found


def loop_of(task: AnyTask, **changes: object) -> tuple[Loop, list[RlStep]]:
    steps: list[RlStep] = []
    loop = Loop(tiny_model(), tiny_tokenizer(), task, CONFIG.model_copy(update=changes))
    loop.observers.append(steps.append)
    return loop, steps


def of_text(sample: Sample) -> float:
    return float(zlib.crc32(sample.completion.encode()) % 5)


async def _raises() -> object:
    raise KeyError("city")


async def _exits() -> object:
    raise SystemExit(3)


async def _cancels() -> object:
    raise asyncio.CancelledError


async def _hangs() -> object:
    await asyncio.sleep(600)
    return None


async def _hangs_and_heeds_nothing() -> object:
    """Until it is told a second time, which is when its scorer closes."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    await asyncio.sleep(600)
    return None


async def _nothing() -> object:
    return None


async def _text() -> object:
    return "very good"


async def _total(total: Any) -> object:
    return Score("ok", total)


BAD: dict[str, Callable[[], Any]] = {
    "raises": _raises,
    "wants to end the program": _exits,
    "cancels itself": _cancels,
    "hangs": _hangs,
    "hangs and heeds nothing": _hangs_and_heeds_nothing,
    "returns nothing": _nothing,
    "returns a text": _text,
    "a total that is NaN": lambda: _total(float("nan")),
    "a total that is infinite": lambda: _total(float("inf")),
    "a total that is a text": lambda: _total("1.0"),
    "a total that is nothing": lambda: _total(None),
}


def test_whatever_a_grader_does_its_answer_is_not_judged_and_the_others_are() -> None:
    kinds = itertools.cycle(BAD)
    done: dict[str, str] = {}

    async def score(sample: Sample) -> Any:
        if zlib.crc32(sample.completion.encode()) % 2:
            return Score("ok", of_text(sample))
        kind = next(kinds)
        done[kind] = sample.completion
        return await BAD[kind]()

    loop, steps = loop_of(Graded(score), grader_timeout=0.3, samples_per_prompt=16)
    metrics = loop.step()
    assert set(done) == set(BAD), "each of them has happened"
    samples = [sample for group in steps[0].groups for sample in group.samples]
    outcomes = {sample.text: sample.score.outcome for sample in samples if sample.score}
    for kind, text in done.items():
        assert outcomes[text] == ("timeout" if kind.startswith("hangs") else "error"), kind
    judged = [sample for sample in samples if sample.judged]
    assert metrics["unjudged"] == len(samples) - len(judged) > 0
    assert metrics["updates"] == 1, "what was judged is learned from"
    assert loop.step()["reward"] > 0, "and the run goes on"
    loop.close()


NAMED = """
import os, pathlib, sys, time, zlib
from rondo.rl.tasks.custom import Custom

def make(random):
    return f"say {random.randint(0, 999)}", {}

def grade(facts, answer):
    told = pathlib.Path(__file__).with_name("told")
    if told.is_dir():
        new = told / f".{os.getpid()}"
        new.touch()
        new.rename(told / str(os.getpid()))
        time.sleep(0.1)
    return zlib.crc32(answer.encode()) % 5

def kills_itself(facts, answer):
    if zlib.crc32(answer.encode()) % 2:
        os.kill(os.getpid(), 9)
    return 1.0

TASK = Custom(make, __file__ + ":grade")
DEADLY = Custom(make, __file__ + ":kills_itself")
"""


@pytest.fixture
def named(tmp_path: Path) -> Path:
    (tmp_path / "named.py").write_text(NAMED)
    return tmp_path / "named.py"


def test_a_grader_that_kills_its_process_is_not_judged(named: Path) -> None:
    from rondo.rl.tasks.registry import find

    loop, steps = loop_of(find(f"{named}:DEADLY"), prompts_per_step=2)
    metrics = loop.step()
    samples = [sample for group in steps[0].groups for sample in group.samples]
    deadly = [sample for sample in samples if zlib.crc32(sample.text.encode()) % 2]
    assert metrics["unjudged"] == len(deadly) > 0
    assert all("signal 9" in sample.score.detail for sample in deadly if sample.score)
    assert metrics["reward"] == 1.0
    loop.close()


def killed_one_a_step(loop: Loop, workers: Callable[[], list[int]]) -> list[int]:
    """Of the processes that grade, once it is at work."""
    killed: list[int] = []
    for _ in range(2):
        stepping = threading.Thread(target=loop.step)
        stepping.start()
        wait_until(lambda: set(workers()) - set(killed))
        (one, *_) = set(workers()) - set(killed)
        os.kill(one, signal.SIGKILL)
        killed.append(one)
        stepping.join(60)
        assert not stepping.is_alive()
    return killed


def check_same(steps: list[RlStep], calm: list[RlStep]) -> None:
    for mine, theirs in zip(steps, calm, strict=True):
        assert mine.metrics["unjudged"] == 0
        for name in ("reward", "loss", "grad_norm"):
            assert mine.metrics[name] == theirs.metrics[name]


def test_a_killed_process_of_the_graders_changes_nothing(
    named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rondo.graders.processes import pool
    from rondo.rl.tasks.registry import find

    calm, steps_of_calm = loop_of(find(f"{named}:TASK"))
    calm.step(), calm.step()
    calm.close()
    monkeypatch.setattr(pool, "_shared", pool.GraderPool(2))
    told = tmp_path / "told"
    told.mkdir()
    loop, steps = loop_of(find(f"{named}:TASK"))
    killed = killed_one_a_step(loop, lambda: [int(name) for name in os.listdir(told) if name.isdigit()])
    loop.close()
    check_same(steps, steps_of_calm)
    wait_until_gone(killed)
    everybody = [worker.pid for worker in pool.shared()._all]
    assert len(everybody) <= 2
    pool.shared().close()
    wait_until_gone(everybody)


GRADE = """
import time, zlib
def grade(sample, item):
    time.sleep(0.1)
    return zlib.crc32(sample["output_text"].encode()) % 5
"""


@pytest.mark.skipif(not isolation().available, reason=isolation().about)
def test_a_killed_worker_of_the_sandbox_changes_nothing() -> None:
    import psutil

    grader = PythonGrader(GRADE)

    async def score(sample: Sample) -> Score:
        return await grader.score(sample)

    def at_work() -> list[int]:
        found = []
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "inside.zygote" in " ".join(child.cmdline()) and len(child.children(recursive=True)) > 1:
                    found.append(child.pid)
        return found

    calm, steps_of_calm = loop_of(Graded(score))
    calm.step(), calm.step()
    calm.close()
    loop, steps = loop_of(Graded(score))
    killed = killed_one_a_step(loop, at_work)
    loop.close()
    check_same(steps, steps_of_calm)
    wait_until_gone(killed)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    with atomic_dir(folder) as made:
        models.save_into(tiny_model(), made)
        tiny_tokenizer().save(made)
    return folder


class Calm(NamedTuple):
    """What a run leaves that nothing happens to."""

    weights: str
    checkpoint: Path


def weights(left: Path) -> str:
    return sha256_file(left / "model.safetensors")


@pytest.fixture(scope="module")
def calm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(tmp_path_factory.mktemp("calm"))))
        plan = plan_of(model)
        return Calm(weights(jobs.run(plan)), Path(plan.job.checkpoints) / f"step_{STEPS}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return tmp_path


def plan_of(model: Path, **changes: object) -> jobs.RlJobPlan:
    return jobs.plan(CONFIG.model_copy(update={"model": str(model), **changes}))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(EngineCore, "step"), (Learner, "optim_step"), (Learner, "forward_backward"), (InPlace, "update")],
    ids=["engine", "optimizer", "learner", "push"],
)
def test_what_breaks_ends_the_run_with_its_reason_and_the_same_command_goes_on(
    owner: type, name: str, model: Path, home: Path, calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, works = plan_of(model), getattr(owner, name)

    def breaks(*arguments: Any, **named: Any) -> Any:
        if plan.job.status().get("step", 0) >= 2:
            raise RuntimeError("the device fell off")
        return works(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, breaks)
        with pytest.raises(RuntimeError, match="fell off"):
            jobs.run(plan)
    status = plan.job.status()
    assert (status["state"], status["step"]) == ("failed", 2)
    assert "the device fell off" in status["reason"]
    assert weights(jobs.run(plan_of(model))) == calm.weights
    assert plan.job.state() == "succeeded"


def test_a_job_in_which_all_earn_the_same_leaves_its_model_and_says_so(
    model: Path, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "same.py").write_text(
        "from rondo.rl.tasks.custom import Custom\n"
        "TASK = Custom(lambda random: (f'say {random.random()}', {}), lambda facts, answer: 1)\n"
    )
    plan = plan_of(model, task=f"{tmp_path / 'same.py'}:TASK", steps=2)
    with caplog.at_level("WARNING", "rondo.rl.jobs"):
        left = jobs.run(plan)
    assert "no step has changed the weights: the task is too hard or too easy" in caplog.text
    assert weights(left) == weights(model)
    assert plan.job.state() == "succeeded"


def test_an_asynchronous_engine_that_breaks_ends_the_run_with_its_reason(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, works = plan_of(model, mode="async"), EngineCore.step

    def breaks(core: EngineCore, *arguments: Any, **named: Any) -> Any:
        if plan.job.status().get("step", 0) >= 2:
            raise RuntimeError("the device fell off")
        return works(core, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(EngineCore, "step", breaks)
        with pytest.raises(Unavailable, match="the engine failed"):
            jobs.run(plan)
    assert plan.job.state() == "failed"
    assert "the device fell off" in plan.job.status()["reason"]
    jobs.run(plan_of(model, mode="async"))
    assert plan.job.state() == "succeeded"


def test_rollouts_on_a_full_disk_are_lost_and_counted_and_the_run_goes_on(
    model: Path, home: Path, calm: Calm
) -> None:
    plan = plan_of(model)
    folder = plan.job.path / "rollouts"
    with small_disk(folder, "12k"):
        assert weights(jobs.run(plan)) == calm.weights
        stored = steps_in(folder)
    assert 0 < len(stored) < STEPS
    with (plan.job.path / "metrics.jsonl").open() as file:
        *_, last = map(json.loads, file)
    assert last["rollouts_lost"] == 12 * (STEPS - len(stored))


def test_a_checkpoint_on_a_full_disk_ends_the_run_and_with_room_the_same_command_goes_on(
    model: Path, home: Path, calm: Calm
) -> None:
    """There is room for one and a half."""
    plan = plan_of(model)
    folder = plan.job.path / "checkpoints"
    one = sum(file.stat().st_size for file in calm.checkpoint.rglob("*"))
    with small_disk(folder, f"{one * 3 // 2048}k"):
        with pytest.raises(StorageError, match=r"No space left to write .*checkpoints"):
            jobs.run(plan)
        status = plan.job.status()
        assert status["state"] == "failed"
        assert "Free some space" in status["reason"]
        resize(folder, f"{one // 100}k")
        assert weights(jobs.run(plan)) == calm.weights


def test_a_line_of_metrics_on_a_full_disk_is_an_error_that_says_so_and_nothing_hides_it(
    tmp_path: Path,
) -> None:
    """Not even that the job's state cannot be written there either."""
    with small_disk(tmp_path / "job", "16k"):
        job = Job(tmp_path / "job")
        with pytest.raises(StorageError, match=r"No space left to write .*metrics\.jsonl"):
            for step in range(100):
                job.log({"step": step, "text": "x" * 1000})
        with pytest.raises(StorageError):
            job.set_status("running", 1)
        job.end("failed", 1, reason="no space")
