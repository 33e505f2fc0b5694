"""Workers that vanish, finish twice or late, and stop; a full disk; a clock that jumps."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.client.http import Client
from rondo.control.tables import requests
from rondo.worker.room import HAND_BACK_SECONDS, HandBacks
from support.postgres import postgres
from support.waiting import wait_until
from worker.running import worker_of

QUEUE = {"rest": 0.01, "longest_rest": 0.05, "attempts": 3, "sweep_every": 0.05}
RESULT = {"status": 200, "request_id": "r", "body": {"choices": [{"text": "x"}]}, "output_tokens": 1}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RunningGateway, Stub]]:
    with ExitStack() as stack:
        stub = stack.enter_context(served(Stub()))
        yield stack.enter_context(gateway_of([stub.url], tmp_path, queue=QUEUE)), stub


def post(gateway: RunningGateway, route: str, body: Any) -> Any:
    response = httpx.post(f"{gateway.url}/v1/queue/{route}", json=body, timeout=120)
    assert response.is_success, response.text
    return response.json()


def submit(client: Client, number: int = 1, **body: Any) -> list[str]:
    items = [
        {"path": "/v1/completions", "body": {"model": "m", "prompt": str(place)} | body}
        for place in range(number)
    ]
    group = client.submit(items)
    return [f"{group['id']}_{place:09d}" for place in range(number)]


def lease(gateway: RunningGateway, worker: str, limit: int = 10) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = post(
        gateway, "leases", {"worker": worker, "models": ["m"], "limit": limit, "wait": 20}
    )["items"]
    return found


def finish(gateway: RunningGateway, held: dict[str, Any], **ended: Any) -> str:
    each = {"id": held["id"], "lease": held["lease"], **(ended or {"result": RESULT})}
    verdict: str = post(gateway, "finish", {"worker": "w", "results": [each]})["verdicts"][0]
    return verdict


def expire(gateway: RunningGateway) -> None:
    """As if each worker had sent no heartbeat for the time of a lease."""
    past = sa.update(requests).where(requests.c.until.is_not(None)).values(until=1)
    gateway.store.write(lambda db: db.execute(past)).result()


def until_of(gateway: RunningGateway) -> list[int | None]:
    wanted = sa.select(requests.c.until)
    return list(gateway.store.read(lambda db: db.scalars(wanted).all()).result())


def test_a_vanished_workers_prompt_goes_to_another_and_its_late_result_is_refused(pair) -> None:
    gateway, _ = pair
    with Client(gateway.url) as client:
        submit(client)
        (first,) = lease(gateway, "vanished")
        expire(gateway)
        (second,) = lease(gateway, "other")
        assert (second["id"], second["attempts"]) == (first["id"], 2)
        assert finish(gateway, first) == "stale"
        assert finish(gateway, second) == "done"
        assert finish(gateway, second) == "done", "a repetition has the same verdict"
        assert finish(gateway, first) == "stale"
        usage = httpx.get(f"{gateway.url}/v1/usage").json()["data"]
        assert [(row["requests"], row["output_tokens"]) for row in usage] == [(1, 1)]


def test_a_late_result_counts_while_no_other_worker_has_the_prompt(pair) -> None:
    gateway, _ = pair
    with Client(gateway.url) as client:
        (id,) = submit(client)
        (held,) = lease(gateway, "late")
        expire(gateway)
        wait_until(lambda: client.queued_request(id)["state"] in ("resting", "queued"))
        assert finish(gateway, held) == "done"


def test_heartbeats_renew_leases_and_name_lost_ones(pair) -> None:
    gateway, _ = pair
    with Client(gateway.url) as client:
        (id,) = submit(client)
        (held,) = lease(gateway, "alive")
        (before,) = until_of(gateway)
        assert post(gateway, "heartbeat", {"worker": "alive", "held": [[id, held["lease"]]]})["lost"] == []
        (after,) = until_of(gateway)
        assert before is not None
        assert after is not None
        assert after > before
        client.cancel_group(id.rpartition("_")[0])
        assert post(gateway, "heartbeat", {"worker": "alive", "held": [[id, held["lease"]]]})["lost"] == [id]
        assert finish(gateway, held) == "stale"


def test_a_released_prompt_returns_at_once_without_an_attempt(pair) -> None:
    gateway, _ = pair
    with Client(gateway.url) as client:
        ids = submit(client, 3)
        lease(gateway, "ends")
        assert post(gateway, "release", {"worker": "other"})["released"] == 0
        assert post(gateway, "release", {"worker": "ends"})["released"] == 3
        again = lease(gateway, "next")
        assert [(each["id"], each["attempts"]) for each in again] == [(id, 1) for id in ids]


def test_a_prompt_fails_for_good_after_its_attempts(pair) -> None:
    gateway, _ = pair
    with Client(gateway.url) as client:
        (id,) = submit(client)
        verdicts = []
        for _ in range(3):
            (held,) = lease(gateway, "w")
            verdicts.append(finish(gateway, held, error="crashed", again=True))
        assert verdicts == ["resting", "resting", "dead"]
        assert client.queued_request(id)["error"] == {"reason": "crashed"}


def test_a_worker_that_stops_finishes_or_hands_back(pair) -> None:
    gateway, stub = pair
    stub.mode = "stall"
    with Client(gateway.url) as client:
        ids = submit(client, 4)
        with worker_of(gateway.url, stub.url) as first:
            wait_until(lambda: len(stub.requests) == 4)
            first.stop(0.1)
        wait_until(lambda: [client.queued_request(id)["state"] for id in ids] == ["queued"] * 4)
        stub.mode = "ok"
        with worker_of(gateway.url, stub.url):
            assert [each["state"] for each in client.results(ids[0].rpartition("_")[0])] == ["done"] * 4
        stub.released.set()


def test_a_worker_drops_what_was_cancelled(pair) -> None:
    gateway, stub = pair
    stub.mode = "stall"
    with Client(gateway.url) as client, worker_of(gateway.url, stub.url) as running:
        (id,) = submit(client)
        wait_until(lambda: stub.requests)
        client.cancel_group(id.rpartition("_")[0])
        wait_until(lambda: not running.worker.held)
        assert client.queued_request(id)["state"] == "cancelled"
        stub.released.set()


def test_an_ended_attempt_leaves_a_later_lease_of_the_same_request_alone(pair) -> None:
    gateway, stub = pair
    stub.mode = "stall"
    with Client(gateway.url) as client, worker_of(gateway.url, stub.url) as running:
        (id,) = submit(client)
        wait_until(lambda: stub.requests)
        first = running.worker.held[id].lease
        expire(gateway)
        wait_until(lambda: id in running.worker.held and running.worker.held[id].lease != first)
        stub.released.set()
        (result,) = client.results(id.rpartition("_")[0])
        assert (result["state"], result["attempts"]) == ("done", 2)


def test_hand_backs_of_requests_that_end_elsewhere_are_forgotten() -> None:
    counts = HandBacks()
    assert [counts.add("a", now) for now in (0.0, 1.0)] == [1, 2]
    counts.add("b", 2.0)
    assert counts.add("c", 2.0 + HAND_BACK_SECONDS) == 1
    assert len(counts) == 2
    counts.forget("b")
    assert len(counts) == 1


def test_a_clock_that_jumps_ends_no_lease(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, _ = pair
    real, real_ns = time.time, time.time_ns
    with Client(gateway.url) as client:
        (id,) = submit(client)
        (held,) = lease(gateway, "w")
        for jump in (86_400, -86_400):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            monkeypatch.setattr(time, "time_ns", lambda jump=jump: real_ns() + jump * 10**9)
            time.sleep(0.3)
            assert client.queued_request(id)["state"] == "leased"
        assert finish(gateway, held) == "done"


def test_a_result_waits_for_room_on_the_disk(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, stub = pair
    from rondo.control.queue import leases

    real, failures = leases.finish, []

    def full(*arguments: Any) -> Any:
        failures.append(1)
        raise sa.exc.OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr(leases, "finish", full)
    with Client(gateway.url) as client, worker_of(gateway.url, stub.url):
        (id,) = submit(client)
        wait_until(lambda: len(failures) >= 3)
        monkeypatch.setattr(leases, "finish", real)
        (result,) = client.results(id.rpartition("_")[0])
        assert result["state"] == "done"
    assert len(stub.requests) == 1, "the response is kept while the disk is full"


def test_a_gateway_that_is_away_delays_results_only(pair) -> None:
    gateway, stub = pair
    stub.mode = "stall"
    with Client(gateway.url) as client, worker_of(gateway.url, stub.url) as running:
        (id,) = submit(client)
        wait_until(lambda: stub.requests)
        running.worker.link.url = "http://127.0.0.1:9"
        stub.released.set()
        wait_until(lambda: running.worker.link._away)
        running.worker.link.url = gateway.url
        (result,) = client.results(id.rpartition("_")[0])
        assert result["state"] == "done"


@pytest.mark.real
def test_a_restart_of_postgresql_delays_results_only(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(postgres())
        stub = stack.enter_context(served(Stub()))
        gateway = stack.enter_context(gateway_of([stub.url], tmp_path, cluster.database(), queue=QUEUE))
        running = stack.enter_context(worker_of(gateway.url, stub.url))
        client = stack.enter_context(Client(gateway.url))
        stub.mode = "stall"
        (id,) = submit(client)
        wait_until(lambda: stub.requests)
        cluster.stop(signal.SIGQUIT)
        stub.released.set()
        wait_until(lambda: running.worker.link._away)
        stub.mode = "ok"
        cluster.start()
        (result,) = client.results(id.rpartition("_")[0])
        assert (result["state"], result["attempts"]) == ("done", 1)
        assert len(stub.requests) == 1
