"""kill -9 of gateway, worker and engine at random moments: an accepted prompt is answered exactly once.

Each is a process of its own. Whatever is killed is started again, as a supervisor does.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from hypothesis import strategies as st

from rondo.base.errors import RondoError
from rondo.client.http import Client
from rondo.client.platform.queue import patiently
from rondo.control.queue.views import rows_from
from rondo.control.store.store import Store
from support import forked_gateway as forked
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import scaled, wait_until
from worker import echo_engine

QUEUE = {"lease": 2, "rest": 0.05, "longest_rest": 0.2, "attempts": 1000, "sweep_every": 0.2}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery([forked.MODULE, echo_engine.__name__]) as started:
        yield started


class Part:
    """A process that is started again with the same command."""

    def __init__(self, nursery: Nursery, folder: Path, name: str, work: str, *command: str) -> None:
        self.nursery, self.work = nursery, work
        self.arguments = [str(folder / f"{name}.log"), *command]
        self.environment = {"RONDO_HOME": str(folder / "home"), "RONDO_LOG_LEVEL": "warning"}
        self.pid = 0

    def start(self) -> None:
        self.pid = self.nursery.start(self.work, *self.arguments, environment=self.environment)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.nursery.wait(self.pid)

    def restart(self) -> None:
        self.kill()
        self.start()


class Deployment:
    def __init__(self, nursery: Nursery, folder: Path) -> None:
        own_home(folder / "home")
        gateway, engine = free_port(), free_port()
        self.url, self.folder = f"http://127.0.0.1:{gateway}", folder
        settings = [f"--gateway.queue.{name}={value}" for name, value in QUEUE.items()]
        address, rondo = f"http://127.0.0.1:{engine}", f"{forked.MODULE}:rondo"
        served = ("gateway", address, f"--port={gateway}", *settings)
        echo = f"{echo_engine.__name__}:serve"
        self.parts = {
            "gateway": Part(nursery, folder, "gateway", rondo, *served),
            "engine": Part(nursery, folder, "engine", echo, str(engine)),
        }
        for number in range(2):
            command = ("worker", f"--gateway={self.url}", f"--engine={address}", "--worker.concurrency=4")
            self.parts[f"worker-{number}"] = Part(
                nursery, folder, f"worker-{number}", rondo, *command, "--worker.wait_seconds=0.5"
            )

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def deployment(nursery: Nursery) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        made = Deployment(nursery, Path(name))
        for part in made.parts.values():
            part.start()
            stack.callback(part.kill)
        wait_until(made.ready, 120)
        yield made


def submit(client: Client, prompts: list[str], key: str) -> str:
    items = [{"path": "/v1/completions", "body": {"model": "m", "prompt": each}} for each in prompts]
    group: dict[str, Any] = patiently(lambda: client.submit(items, idempotency_key=key), scaled(120))
    return str(group["id"])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40)),
        st.tuples(st.sampled_from(["gateway", "engine", "worker-0", "worker-1"]), st.just(0)),
        st.tuples(st.just("pause"), st.integers(1, 200)),
    ),
    min_size=4,
    max_size=12,
)


@hypothesis.settings(
    max_examples=2, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None
)
@hypothesis.given(steps=STEPS)
@hypothesis.example(
    steps=[
        ("submit", 40),
        ("worker-0", 0),
        ("pause", 50),
        ("gateway", 0),
        ("submit", 10),
        ("engine", 0),
        ("pause", 100),
        ("gateway", 0),
        ("worker-1", 0),
        ("submit", 10),
        ("gateway", 0),
    ]
)
def test_accepted_prompts_are_answered_exactly_once(nursery: Nursery, steps: list[tuple[str, int]]) -> None:
    sent: dict[str, list[str]] = {}
    with deployment(nursery) as made:
        with Client(made.url) as client:
            for place, (action, number) in enumerate([("submit", 20), *steps]):
                if action == "submit":
                    prompts = [f"{place}-{each}" for each in range(number)]
                    sent[submit(client, prompts, f"key-{place}")] = prompts
                elif action == "pause":
                    time.sleep(number / 1000)
                else:
                    made.parts[action].restart()
            for group in sent:
                wait_until(lambda group=group: ended(client, group), 180)
            shown = {group: list(client.results(group)) for group in sent}
        usage = httpx.get(f"{made.url}/v1/usage", timeout=60).json()["data"]
        made.parts["gateway"].kill()
        store = Store(made.folder / "home" / "rondo.db")
        try:
            rows = {group: rows_from(store, group, -1, 1000).result() for group in sent}
        finally:
            store.close()
        made.parts["gateway"].start()
    for group, prompts in sent.items():
        assert [each["result"]["body"]["choices"][0]["text"] for each in shown[group]] == prompts
        assert [row.state for row in rows[group]] == ["done"] * len(prompts)
    assert sum(row["requests"] for row in usage) == sum(map(len, sent.values())), "each is counted once"


def ended(client: Client, group: str) -> bool:
    try:
        return client.group(group)["ended"] is not None
    except RondoError:
        return False
