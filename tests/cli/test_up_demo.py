"""`rondo up` that is interrupted while it makes the demo model, and resumed by the same command."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rondo.jobs.job import Job
from support.forks import python
from support.home import own_home
from support.ports import free_port
from support.served import SOURCES
from support.waiting import scaled, wait_until

QUICK_UP = """
import sys
import rondo.demo.pipeline as pipeline
from rondo.demo.recipe import QUICK
pipeline.recipe_for = lambda task: QUICK
from rondo.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""`rondo` with a demo model that is made in seconds."""


def test_ctrl_c_while_the_demo_model_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    flags = ["up", f"--port={free_port()}", f"--up.first_port={free_port()}"]
    command = [str(python()), "-c", QUICK_UP, *flags]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}

    def started(out: Path) -> subprocess.Popen[bytes]:
        with out.open("wb") as file:
            return subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    first = started(tmp_path / "first")
    wait_until(lambda: any(job.step > 0 for job in Job.all()), 240)
    first.send_signal(signal.SIGINT)
    assert first.wait(scaled(240)) == 130
    said = (tmp_path / "first").read_text()
    assert "Traceback" not in said
    assert f"rondo {flags[0]} {flags[1]}" in said.partition("Resume with:")[2]
    assert not (tmp_path / "home/models/demo/config.json").exists()
    interrupted = {job.name: job.step for job in Job.all()}

    second = started(tmp_path / "second")
    try:
        wait_until(lambda: b"models: demo" in (tmp_path / "second").read_bytes(), 480)
        done = {job.name: job.state() for job in Job.all()}
        assert interrupted.keys() < done.keys(), "the jobs go on"
        assert set(done.values()) == {"succeeded"}
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(scaled(120)) == 0
