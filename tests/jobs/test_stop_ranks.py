"""Ctrl-C in the terminal of a launcher: torchrun forwards it to its ranks, which save together."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from jobs.conftest import train_command
from rondo.jobs.job import Job
from support.home import own_home
from support.launch import SOURCES
from support.waiting import wait_until

LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rondo"]


def interrupted_after(step: int, ground: Path, home: Path) -> str:
    """Standard error of a job of two ranks that gets a Ctrl-C some time after the step."""
    command = [sys.executable, *LAUNCHER, *train_command(ground, 100_000, "--train.save_every=0")]
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    with (
        (home / "said").open("w") as said,
        subprocess.Popen(command, stderr=said, env=environment, start_new_session=True) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or any(job.step > step for job in Job.all()), 240)
            assert process.poll() is None, (home / "said").read_text()
            process.send_signal(signal.SIGINT)
            process.wait(240)
        finally:
            process.kill()
    return (home / "said").read_text()


def test_ctrl_c_saves_once_for_all_ranks(ground: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    saved = 0
    for _ in range(2):
        said = interrupted_after(saved, ground, tmp_path)
        (job,) = Job.all()
        assert job.state() == "paused", said
        told = re.findall(r"step (\d+) of 100000 is saved\. Resume with:\n\n  (.*)\n", said)
        assert len(told) == 1, said
        assert told[0][1].startswith(
            "python -m torch.distributed.run --standalone --nproc-per-node 2 -m rondo train sft"
        )
        assert (Path(job.checkpoints) / f"step_{told[0][0]}/manifest.json").is_file()
        assert int(told[0][0]) > saved
        saved = int(told[0][0])
    rows = [row["step"] for row in job.metrics()]
    assert rows == list(range(1, saved + 1)), "no step is missing or repeated"
