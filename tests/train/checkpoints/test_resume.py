"""A job that is killed at any moment goes on, and ends with the weights of one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from rondo import models
from rondo.base.errors import ConfigError, Conflict, StorageError
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.train import jobs
from rondo.train.config import TrainConfig
from support.full_disk import files_up_to
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 24


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and data."""
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers {i * i}"}) for i in range(50)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder


def config(ground: Path) -> TrainConfig:
    return TrainConfig(
        model=str(ground / "model"),
        data=str(ground / "data.jsonl"),
        steps=STEPS,
        tokens_per_step=200,
        tokens_per_microbatch=128,
        max_length=64,
        save_every=2,
        warmup=5,
    )


WORKER = """
import os, signal, sys, threading
from rondo.train import jobs
from rondo.train.config import TrainConfig
last = int(sys.argv[2])
def end(step, metrics):
    if step == last:
        threading.Timer(0.003, os.kill, (os.getpid(), signal.SIGKILL)).start()
jobs.run(jobs.plan("pretrain", TrainConfig.model_validate_json(sys.argv[1])), end)
"""


def worker(config: TrainConfig, home: Path, last: int = 0) -> "subprocess.Popen[bytes]":
    """A process that works on the job, and is killed a moment after the step `last`, whatever it is at then."""
    environment = {**os.environ, "RONDO_HOME": str(own_home(home))}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, config.model_dump_json(), str(last)], env=environment
    )


def here(config: TrainConfig, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process."""
    with monkeypatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(home)))
        jobs.run(jobs.plan("pretrain", config))


def job_of(home: Path) -> Path:
    (job,) = (home / "jobs").iterdir()
    return job


def test_killed_and_resumed_is_bit_equal(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, shaken = tmp_path / "calm", tmp_path / "shaken"
    for last in (3, 11):
        assert worker(config(ground), shaken, last).wait(120) == -signal.SIGKILL
        assert last <= _steps_done(shaken) < STEPS
    here(config(ground), shaken, monkeypatch)
    here(config(ground), calm, monkeypatch)
    one, other = job_of(calm), job_of(shaken)
    assert one.name == other.name
    for file in (f"checkpoints/step_{STEPS}/__0_0.distcp", "export/model.safetensors"):
        assert sha256_file(one / file) == sha256_file(other / file)
    rows = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    losses = [json.loads(line)["loss"] for line in (one / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == losses
    assert losses[-1] < losses[0] - 0.5
    assert json.loads((other / "status.json").read_text())["state"] == "succeeded"


def test_a_job_goes_on_from_the_checkpoint_before_a_full_disk(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = config(ground).model_copy(update={"steps": 6})
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "full")))
    plan = jobs.plan("pretrain", told)
    with ExitStack() as full:

        def fill(step: int, metrics: dict[str, float]) -> None:
            if step == 3:
                full.enter_context(files_up_to(64 << 10))

        with pytest.raises(StorageError, match=r"No space left to write .*step_4") as caught:
            jobs.run(plan, fill)
    assert caught.value.code == "no_space"
    assert plan.job.state() == "failed"
    assert [path.name for path in (plan.job.path / "checkpoints").glob("step_*")] == ["step_2"]
    resumed: list[int] = []
    again = jobs.plan("pretrain", told)
    jobs.run(again, lambda step, metrics: resumed.append(step))
    assert (again.job, resumed) == (plan.job, [3, 4, 5, 6])
    here(told, tmp_path / "calm", monkeypatch)
    ends = [sha256_file(job_of(tmp_path / name) / "export/model.safetensors") for name in ("full", "calm")]
    assert ends[0] == ends[1]


def test_the_best_checkpoint_stays_beside_the_last(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"steps": 8, "keep": 1, "keep_best": 1, "best_by": "+loss"}
    here(config(ground).model_copy(update=wanted), tmp_path, monkeypatch)
    job = job_of(tmp_path)
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    best = max((row for row in rows if row["step"] in (2, 4, 6, 8)), key=lambda row: row["loss"])
    left = {folder.name for folder in (job / "checkpoints").iterdir()}
    assert left == {f"step_{best['step']}", "step_8"}


def test_a_place_where_it_cannot_save_is_known_before_the_job_is(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    wrong = tmp_path / "file"
    wrong.write_text("no folder")
    short = config(ground).model_copy(update={"steps": 1})
    with pytest.raises(StorageError, match=r"train\.save_to: Cannot write .*/\.try_0") as error:
        jobs.plan("pretrain", short.model_copy(update={"save_to": f"{wrong}/checkpoints"}))
    assert error.value.param == "train.save_to"
    assert not (tmp_path / "home/jobs").exists(), "so that the same job may have another place"
    right = tmp_path / "checkpoints"
    plan = jobs.plan("pretrain", short.model_copy(update={"save_to": str(right)}))
    assert list(right.iterdir()) == []
    jobs.run(plan)
    assert (right / plan.job.name / "step_1/manifest.json").is_file()


@pytest.mark.parametrize("place", ["s3://bucket/checkpoints", "gopher://bucket"])
def test_a_store_that_cannot_be_used_is_known_before_the_first_step(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    nobody = {
        "AWS_CONFIG_FILE": "/none",
        "AWS_SHARED_CREDENTIALS_FILE": "/none",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in nobody.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        ConfigError, match=r"train\.save_to: (no credentials for s3|there is no kind of store)"
    ) as error:
        jobs.plan("pretrain", config(ground).model_copy(update={"save_to": place}))
    assert error.value.param == "train.save_to"


def test_a_second_process_on_a_job_is_told_so(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    endless = config(ground).model_copy(update={"steps": 100_000})
    first = worker(endless, tmp_path)
    try:
        deadline = time.monotonic() + 120
        while _steps_done(tmp_path) < 3:
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        plan = jobs.plan("pretrain", endless)
        assert plan.job.held()
        says = rf"Another process \({first.pid}\) is working on job {plan.job.short}"
        with pytest.raises(Conflict, match=says):
            jobs.run(plan)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait(30)
    assert not plan.job.held()

    def stop(step: int, metrics: object) -> None:
        raise KeyboardInterrupt

    resumed: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        jobs.run(plan, stop, resumed.append)
    assert resumed[0] >= 2
    assert plan.job.state() == "paused"


def test_an_export_that_was_cut_short_is_written_again(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    plan = jobs.plan("pretrain", config(ground).model_copy(update={"steps": 2}))
    path = jobs.run(plan)
    want = {file.name: sha256_file(file) for file in path.iterdir()}
    (path / "tokenizer.json").unlink()
    plan.job.set_status("running", 2)
    assert jobs.run(plan) == path
    assert {file.name: sha256_file(file) for file in path.iterdir()} == want
    shutil.rmtree(path)
    assert jobs.run(plan) == path
    assert {file.name: sha256_file(file) for file in path.iterdir()} == want


def test_others_may_read_what_umask_lets_them(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    before = os.umask(0o027)
    try:
        path = jobs.run(jobs.plan("pretrain", config(ground).model_copy(update={"steps": 1})))
    finally:
        os.umask(before)
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"__0_0.distcp", "config.json", "manifest.json"}
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in files} == dict.fromkeys(
        [file.name for file in files], "0o640"
    )


def _steps_done(home: Path) -> int:
    files = list((home / "jobs").glob("*/metrics.jsonl"))
    return files[0].read_text().count("\n") if files else 0


def test_the_same_submission_is_one_job_and_done_once(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    short = config(ground).model_copy(update={"steps": 2})
    seen: list[int] = []
    path = jobs.run(jobs.plan("pretrain", short), lambda step, metrics: seen.append(step))
    assert path == jobs.run(jobs.plan("pretrain", short), lambda step, metrics: seen.append(step))
    assert seen == [1, 2]
    shutil.copy(ground / "data.jsonl", tmp_path / "moved.jsonl")
    moved = short.model_copy(update={"data": str(tmp_path / "moved.jsonl")})
    assert jobs.plan("pretrain", moved).job == jobs.plan("pretrain", short).job
    assert jobs.plan("sft", short).job != jobs.plan("pretrain", short).job
