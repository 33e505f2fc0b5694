"""Jobs that another process works on: stop, kill, rename, logs, removal, stale process IDs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.conftest import train_command
from rondo.base.lock import in_use, is_in_use
from rondo.base.process import start
from rondo.cli.main import main
from rondo.jobs import control
from rondo.jobs.job import Job
from rondo.jobs.summary import summary_of
from support.home import own_home
from support.nursery import Nursery
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return tmp_path


@pytest.fixture
def running(ground: Path, nursery: Nursery, home: Path) -> Iterator[tuple[Job, int]]:
    """A job without an end, and its process."""
    command = [*train_command(ground, 1_000_000), "--name", "endless"]
    environment = {"RONDO_HOME": str(home)}
    pid = nursery.start("jobs._stopped:run", command, str(home / "said"), environment=environment)
    wait_until(lambda: any(job.step > 2 for job in Job.all()), 120)
    (job,) = Job.all()
    yield job, pid
    control.kill(job)


def test_stop_saves(running: tuple[Job, int], nursery: Nursery, capsys: pytest.CaptureFixture[str]) -> None:
    job, pid = running
    assert job.holder().pid == pid
    assert main(["job", "stop", "endless"]) == 0
    said = capsys.readouterr().out
    step = summary_of(job).step
    assert f"job endless: paused at step {step}; resume with: rondo train sft" in said
    assert (Path(job.checkpoints) / f"step_{step}/manifest.json").is_file()
    assert nursery.wait(pid) == 0
    assert main(["job", "stop", "endless"]) == 0
    assert f"is not running: paused at step {step}" in capsys.readouterr().out
    assert (job.path / "report.html").is_file()


def test_stop_now_kills(running: tuple[Job, int], nursery: Nursery) -> None:
    job, pid = running
    assert main(["job", "stop", "--now", "endless"]) == 0
    assert nursery.wait(pid) == -9
    assert job.holder() is None
    assert job.status()["state"] == "paused"
    assert "--now" in job.status()["reason"]


def test_a_running_job_is_renamed_and_not_removed(
    running: tuple[Job, int], capsys: pytest.CaptureFixture[str]
) -> None:
    job, pid = running
    assert main(["job", "rename", "endless", "renamed"]) == 0
    before = job.step
    wait_until(lambda: job.step > before, 120)
    assert main(["job", "rm", "renamed", "--yes"]) == 5
    assert "is running: stop it first (`rondo job stop renamed`)" in capsys.readouterr().err
    assert job.holder().pid == pid
    assert main(["job", "rm", "renamed", "--yes", "--force"]) == 0
    assert "freed" in capsys.readouterr().out
    assert not job.path.exists()


def test_logs_follow_a_job_to_its_end(running: tuple[Job, int], home: Path) -> None:
    job, _ = running
    command = [sys.executable, "-m", "rondo", "job", "logs", "-f", "endless"]
    with (home / "log").open("w") as log:
        follower = start(command, stdout=log, env=os.environ)
        try:
            wait_until(lambda: "step 1 of 1000000" in (home / "log").read_text(), 120)
            assert follower.poll() is None
            control.ask_to_stop(job)
            assert follower.wait(120) == 0
        finally:
            follower.kill()
    lines = (home / "log").read_text().splitlines()
    assert "started: rondo train sft" in lines[0]
    assert "paused: step" in lines[-1]


def test_removal_asks_on_a_terminal_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job.of({"kind": "sft"}, name="old")
    (job.path / "metrics.jsonl").write_text("x" * 5000)
    run = [sys.executable, "-m", "rondo", "job", "rm", "old"]
    done = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Confirm with --yes" in done.stderr
    assert job.path.is_dir()
    script = f"script -qec '{' '.join(run)}' /dev/null"
    done = subprocess.run(["bash", "-c", script], input="n\n", capture_output=True, text=True)
    assert "Remove? [y/N]" in done.stdout
    assert job.path.is_dir()
    done = subprocess.run(["bash", "-c", script], input="y\n", capture_output=True, text=True)
    assert "KB freed" in done.stdout
    assert not job.path.exists()
    assert not list(job.path.parent.glob(".*.removed"))


def test_a_stale_process_id_is_recognized(home: Path) -> None:
    job = Job.of({"kind": "sft", "config": {"steps": 9}})
    job.set_status("running", 3)
    (job.path / "lock").write_text(f"{os.getpid()} somewhere")  # a process that has no lock
    assert job.holder() is None
    assert not control.ask_to_stop(job)
    assert not control.kill(job)
    assert summary_of(job).state == "paused"


def test_a_job_of_another_host_is_not_signalled(home: Path) -> None:
    job = Job.of({"kind": "sft"})
    with job.hold():
        (job.path / "lock").write_text("1 elsewhere")
        with pytest.raises(control.InvalidRequest, match="runs on elsewhere: stop it there"):
            control.ask_to_stop(job)


def test_models_in_use_are_not_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "models/m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with in_use(folder), in_use(folder):  # two servers of one model
        assert is_in_use(folder)
        assert main(["model", "rm", "m", "--yes"]) == 5
        assert "in use by a running server or job" in capsys.readouterr().err
    assert not is_in_use(folder)
    waiting = Job.of({"kind": "sft"}, name="waiting", base=str(folder))
    waiting.set_status("paused", 3)
    assert main(["model", "rm", "m", "--yes"]) == 5
    assert "the base of an unfinished job (waiting)" in capsys.readouterr().err
    assert main(["model", "rm", "m", "--yes", "--force"]) == 0
    assert not folder.exists()


def test_stop_without_waiting(
    running: tuple[Job, int], nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    job, pid = running
    assert main(["job", "stop", "--no-wait", "endless"]) == 0
    assert capsys.readouterr().out == "job endless stops after its step\n"
    assert nursery.wait(pid) in (0, 143)
    assert summary_of(job).state == "paused"


def test_the_log_of_another_rank(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job.of({"kind": "sft"}, name="wide")
    (job.path / "logs").mkdir()
    for rank in (0, 1):
        (job.path / f"logs/rank_{rank}.log").write_text(f"first of rank {rank}\nlast of rank {rank}\n")
    assert main(["job", "logs", "wide", "--rank", "1", "-n", "1"]) == 0
    assert capsys.readouterr().out == "last of rank 1\n"
    assert main(["job", "logs", "wide", "--rank", "2"]) == 0
    assert "job wide has no log in" in capsys.readouterr().err


def test_a_gguf_model_in_use_is_not_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server locks the file, which it has opened."""
    file = home / "models/m/file.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    with in_use(file):
        assert main(["model", "rm", "m", "--yes"]) == 5
        assert "in use by a running server or job" in capsys.readouterr().err
    waiting = Job.of({"kind": "sft"}, name="waiting", base=str(file))
    waiting.set_status("paused", 3)
    assert main(["model", "rm", "m", "--yes"]) == 5
    assert "the base of an unfinished job (waiting)" in capsys.readouterr().err
    assert main(["model", "rm", "m", "--yes", "--force"]) == 0
