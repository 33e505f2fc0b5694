"""Jobs of the platform in a real Ray cluster: queue, states, pause and cancellation."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from control.jobs.running import PROGRAM, state, until
from rondo.base.errors import Unavailable
from rondo.base.storage.home import jobs_dir
from rondo.control.config import RayJobsConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.ray_jobs import RayLauncher
from rondo.control.store.store import Store
from rondo.jobs.spec import JobSpec
from support.home import own_home
from support.peers import peer_python
from support.ports import free_port
from support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STAND_IN = """#!/bin/sh
for each; do case $each in --train.model=*) model=${{each#*=}};; --train.data=*) data=${{each#*=}};; esac; done
exec {python} -S {program} "$data" "$model"
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ray = peer_python("ray").parent / "ray"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        command = [str(ray), "start", "--head", "--block", f"--port={free_port()}", "--num-cpus=1"]
        command += [f"--dashboard-port={port}", "--include-dashboard=true", f"--temp-dir={folder}"]
        command += [f"--dashboard-agent-listen-port={free_port()}", "--object-store-memory=100000000"]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            try:
                wait_until(lambda: answers(url), 300)
                yield url
            finally:
                process.terminate()
                process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/jobs/", timeout=20).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobBook]:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    store = Store(tmp_path / "store.sqlite")
    yield JobBook(store)
    store.close()


@pytest.fixture
def launcher(tmp_path: Path, address: str) -> RayLauncher:
    program, python = tmp_path / "program.py", tmp_path / "python"
    program.write_text(PROGRAM)
    python.write_text(STAND_IN.format(python=sys.executable, program=program))
    python.chmod(0o755)
    return RayLauncher(RayJobsConfig(address=address, python=str(python), grace_seconds=5))


def submit(book: JobBook, mode: str, name: str) -> JobRow:
    spec = JobSpec("sft", {"model": name, "data": mode})
    return book.submit(spec, "me", launcher="ray").result()[0]


def test_states(book: JobBook, launcher: RayLauncher) -> None:
    first, second = submit(book, "long", "first"), submit(book, "crash", "second")
    until(book, launcher, lambda: state(book, first) == "running", limit=300)
    assert launcher.nodes()[0].cpus == 1
    until(book, launcher, lambda: book.get(second.id).result().launched, limit=300)
    assert launcher.look(second.id, 1).phase == "waiting", "one CPU is there"
    (jobs_dir() / "first" / "go").touch()
    until(book, launcher, lambda: state(book, first) == "succeeded", limit=300)
    until(book, launcher, lambda: state(book, second) == "failed", limit=300)
    error = book.get(second.id).result().error
    assert error is not None
    assert "out of luck" in error["message"]


def test_pause_and_cancellation(book: JobBook, launcher: RayLauncher) -> None:
    job = submit(book, "long", "a")
    until(book, launcher, lambda: state(book, job) == "running", limit=300)
    book.pause(job.id).result()
    until(book, launcher, lambda: state(book, job) == "paused", limit=300)
    book.resume(job.id).result()
    until(book, launcher, lambda: state(book, job) == "running", limit=300)
    book.cancel(job.id).result()
    until(book, launcher, lambda: not book.get(job.id).result().launched, limit=300)
    assert state(book, job) == "cancelled"
    stubborn = submit(book, "stubborn", "b")
    until(book, launcher, lambda: state(book, stubborn) == "running", limit=300)
    launcher._call("POST", f"/api/jobs/{stubborn.id}-1/stop")
    until(book, launcher, lambda: state(book, stubborn) == "cancelled", limit=300)


def test_a_cluster_that_is_down() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        RayLauncher(RayJobsConfig(address="http://127.0.0.1:9")).nodes()
