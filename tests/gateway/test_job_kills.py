"""A gateway that is killed in each state of a job: every accepted job starts once and ends as it would have."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rondo.client.http import Client
from rondo.client.platform.jobs import RemoteJob
from rondo.control.key import SCOPES, Rights
from rondo.control.keys import Keys
from rondo.control.store.check import problems
from rondo.control.store.store import Store
from support import forked_gateway
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import scaled, wait_until

WORK = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with open(folder / "starts", "a") as starts: starts.write("x")
while not (folder / "go").exists(): time.sleep(0.02)
"""
FLAGS = ("--gateway.keys=required", "--gateway.jobs.poll_seconds=0.02", "--gateway.jobs.slots=8")


class Place:
    """A gateway that is started and killed as often as a test wants, and folders of its jobs."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery, self._port = nursery, free_port()
        self.folder, self._home = folder, own_home(folder / "home")
        (folder / "work.py").write_text(WORK)
        self.store = Store(self._home / "rondo.db")
        _, text = Keys(self.store).make("test", Rights(scopes=(*SCOPES, "code"))).result()
        self._url = f"http://127.0.0.1:{self._port}"
        self.client = Client(self._url, text)

    @contextmanager
    def gateway(self) -> Iterator[None]:
        """It is killed at the end."""
        command = (str(self.folder / "log"), "gateway", f"--port={self._port}", *FLAGS)
        home = {"RONDO_HOME": str(self._home)}
        pid = self._nursery.start(f"{forked_gateway.MODULE}:rondo", *command, environment=home)
        try:
            wait_until(self._listens)
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            self._nursery.wait(pid)

    def submit(self, name: str) -> RemoteJob:
        (self.folder / name).mkdir()
        return self.client.run_script(
            ["python", "-S", "work.py", str(self.folder / name)], {"work.py": self.folder / "work.py"}
        )

    def starts(self, name: str) -> int:
        file = self.folder / name / "starts"
        return len(file.read_text()) if file.exists() else 0

    def go(self, name: str) -> None:
        (self.folder / name / "go").touch()

    def _listens(self) -> bool:
        try:
            return httpx.get(f"{self._url}/v1/health/live").is_success
        except httpx.HTTPError:
            return False


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Nursery([forked_gateway.MODULE]) as nursery:
        found = Place(nursery, tmp_path)
        yield found
        found.client.close()
        found.store.close()


def test_a_gateway_killed_in_each_state_of_a_job(place: Place) -> None:
    with place.gateway():
        queued = place.submit("queued")
        running = place.submit("running")
        cancelled = place.submit("cancelled")
        ended = place.submit("ended")
        names = ("running", "cancelled", "ended")
        wait_until(lambda: all(map(place.starts, names)))
        wait_until(lambda: all(job.refresh().state == "running" for job in (running, cancelled, ended)))
        place.go("ended")  # its end may not have been seen
        cancelled.cancel()
    place.go("queued")
    with place.gateway():
        assert queued.wait(scaled(60)).state == "succeeded"
        assert ended.wait(scaled(60)).state == "succeeded"
        assert running.refresh().state == "running"
        assert cancelled.refresh().state == "cancelled"
        place.go("running")
    with place.gateway():
        assert running.wait(scaled(60)).state == "succeeded"
        cancelled.delete()
    assert [place.starts(name) for name in ("queued", *names)] == [1, 1, 1, 1]
    assert place.store.read(problems).result() == []


def test_a_gateway_killed_at_random_starts_every_accepted_job_once(place: Place) -> None:
    jobs: list[tuple[str, RemoteJob]] = []
    for number in range(4):
        with place.gateway():
            for count in range(2):
                name = f"{number}-{count}"
                jobs.append((name, place.submit(name)))
                if random.random() < 0.5:
                    place.go(name)
            time.sleep(random.uniform(0, 0.15))
    for name, _ in jobs:
        place.go(name)
    with place.gateway():
        for name, job in jobs:
            assert job.wait(scaled(60)).state == "succeeded"
            assert place.starts(name) == 1
    assert place.store.read(problems).result() == []
