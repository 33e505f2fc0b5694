"""kill -9 of `rondo serve` while its built-in worker holds leases: each request is answered exactly once, by the server
that is started again or by another worker."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.stub import RunningGateway, Stub, gateway_of
from gateway.stub import served as stub_served
from rondo.client.http import Client
from rondo.control.store.check import problems
from rondo.control.tables import requests, results
from server.running import make_model
from support.forked import SERVE, Forked
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import wait_until
from worker.running import worker_of

NUMBER, CONCURRENCY, SHORTEST = 40, 6, 100
QUEUE = {"lease": 5.0, "rest": 0.05, "longest_rest": 0.2, "attempts": 10, "sweep_every": 0.2}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(SERVE) as started:
        yield started


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture
def serving(nursery: Nursery, model: Path, tmp_path: Path) -> Callable[[str], Forked]:
    """Starts `rondo serve` with the worker inside it, each time on the same port."""
    flags = [f"--port={free_port()}", f"--max-num-seqs={CONCURRENCY}", f"--worker.concurrency={CONCURRENCY}"]
    flags += ["--worker.wait_seconds=0.5", "--worker.name=inside"]

    def start(gateway: str) -> Forked:
        home = {"RONDO_HOME": str(tmp_path / "home")}
        return Forked(nursery, tmp_path, ["serve", str(model), f"--worker.gateway={gateway}", *flags], home)

    return start


def submit(client: Client) -> str:
    """Each request has a number of tokens of its own, so that a result belongs to one request alone."""
    items = [
        {
            "path": "/v1/completions",
            "body": {"model": "tiny", "prompt": "abc", "max_tokens": SHORTEST + place, "ignore_eos": True},
        }
        for place in range(NUMBER)
    ]
    return str(client.submit(items)["id"])


def states(gateway: RunningGateway) -> Counter[str]:
    return Counter(gateway.store.read(lambda db: db.scalars(sa.select(requests.c.state)).all()).result())


def stored(gateway: RunningGateway) -> dict[int, str]:
    """Results by place."""
    wanted = sa.select(requests.c.place, results.c.result).join(results, results.c.id == requests.c.id)
    rows = gateway.store.read(lambda db: db.execute(wanted).all()).result()
    return {row.place: row.result for row in rows}


def kill_among_requests(gateway: RunningGateway, process: Forked, done: int) -> dict[int, str]:
    """Kills the server when so many requests are done while it holds others. Results at that time."""

    def working() -> bool:
        assert process.is_running, process.err.read_text()
        now = states(gateway)
        return now["done"] >= done and now["leased"] > 0

    wait_until(working)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert states(gateway)["leased"] > 0, "it held leases"
    return stored(gateway)


def check_answers(gateway: RunningGateway, client: Client, group: str, before: dict[int, str]) -> set[int]:
    """Places of the requests that the server answered, not the other worker."""
    wait_until(lambda: client.group(group)["ended"] is not None, 60)
    shown: list[dict[str, Any]] = list(client.results(group))
    assert [each["state"] for each in shown] == ["done"] * NUMBER
    after = stored(gateway)
    assert {place: after[place] for place in before} == before, "a result is final"
    bodies = [each["result"]["body"] for each in shown]
    ours = {place for place, body in enumerate(bodies) if "from" not in body}
    assert all(bodies[place]["usage"]["completion_tokens"] == SHORTEST + place for place in ours)
    usage = httpx.get(f"{gateway.url}/v1/usage", timeout=60).json()["data"]
    assert sum(row["requests"] for row in usage) == NUMBER, "each is counted once"
    assert gateway.store.read(problems).result() == []
    return ours


@contextmanager
def serving_until_killed(process: Forked) -> Iterator[Forked]:
    try:
        yield process
    finally:
        process.kill()


def test_the_restarted_server_answers_the_rest_once(serving: Callable[[str], Forked], tmp_path: Path) -> None:
    with gateway_of([], tmp_path, queue=QUEUE) as gateway, Client(gateway.url) as client:
        group, before = submit(client), dict[int, str]()
        for done in (1, NUMBER // 2):
            with serving_until_killed(serving(gateway.url)) as process:
                before |= kill_among_requests(gateway, process, done)
        with serving_until_killed(serving(gateway.url)):
            assert len(check_answers(gateway, client, group, before)) == NUMBER


def test_another_worker_answers_the_rest_once(serving: Callable[[str], Forked], tmp_path: Path) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_of([], tmp_path, queue=QUEUE))
        client = stack.enter_context(Client(gateway.url))
        group = submit(client)
        process = stack.enter_context(serving_until_killed(serving(gateway.url)))
        before = kill_among_requests(gateway, process, CONCURRENCY)
        other = stack.enter_context(stub_served(Stub(models=["tiny"])))
        stack.enter_context(worker_of(gateway.url, other.url))
        ours = check_answers(gateway, client, group, before)
        assert ours >= before.keys(), "a result may arrive after the death of its worker"
        assert len(other.requests) == NUMBER - len(ours), "none of them reaches the engine twice"
