"""Ctrl-C in the terminal of a launcher: torchrun forwards it to its ranks, which save together, and go on together."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.conftest import train_command
from rondo.jobs.job import Job
from support.home import own_home
from support.launch import SOURCES
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import wait_until

LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rondo"]


def command_of(ground: Path) -> list[str]:
    return train_command(ground, 100_000, "--train.save_every=0")


def interrupted(ground: Path, home: Path) -> str:
    """Standard error of a job of two ranks whose launcher gets a Ctrl-C some time after a step."""
    command = [sys.executable, *LAUNCHER, *command_of(ground)]
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    with (
        (home / "said").open("w") as said,
        subprocess.Popen(command, stderr=said, env=environment, start_new_session=True) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or any(job.step > 0 for job in Job.all()), 240)
            assert process.poll() is None, (home / "said").read_text()
            process.send_signal(signal.SIGINT)
            process.wait(240)
        finally:
            process.kill()
    return (home / "said").read_text()


def interrupted_again(nursery: Nursery, ground: Path, home: Path) -> str:
    """As the launcher does it: each rank is told, in its third step."""
    said = home / "said again"
    environment = {
        "RONDO_HOME": str(own_home(home)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    pids = [
        nursery.start(
            "jobs._stopped:run",
            command_of(ground),
            str(said),
            "optimizer",
            3,
            "SIGINT",
            environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [nursery.wait(pid) for pid in pids] == [130, 130], said.read_text()
    return said.read_text()


def test_ctrl_c_saves_once_for_all_ranks(
    ground: Path, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    job, saved, resume = paused(interrupted(ground, tmp_path))
    assert resume.startswith(
        "python -m torch.distributed.run --standalone --nproc-per-node 2 -m rondo train sft"
    )
    job, last, _ = paused(interrupted_again(nursery, ground, tmp_path))
    assert last > saved > 0
    rows = [row["step"] for row in job.metrics()]
    assert rows == list(range(1, last + 1)), "no step is missing or repeated"


def paused(said: str) -> tuple[Job, int, str]:
    """The job, the step that was saved, and the command that resumes it; each is said once by all ranks together."""
    (job,) = Job.all()
    assert job.state() == "paused", said
    [(step, command)] = re.findall(r"step (\d+) of 100000 is saved\. Resume with:\n\n  (.*)\n", said)
    assert (Path(job.checkpoints) / f"step_{step}/manifest.json").is_file()
    return job, int(step), command
