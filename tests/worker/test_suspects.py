"""A request that crashes the engine, among others: it becomes a dead letter, and the others are answered."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.client.http import Client
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.worker import worker
from support.waiting import wait_until
from worker.running import worker_of

QUEUE = {"rest": 0.01, "longest_rest": 0.05, "sweep_every": 0.05}
ATTEMPTS = QueueConfig().attempts


@dataclass
class FragileEngine(Stub):
    """A poison ends all requests in flight, by broken connections or with `refusal`; then the engine restarts."""

    refusal: tuple[int, str] | None = None
    crashes: list[int] = field(default_factory=list)
    """Number of requests in flight at each crash."""
    answered: Counter[str] = field(default_factory=Counter)
    flying: set[str] = field(default_factory=set)
    restart: float = 0.2
    arrived: float = 0.0
    down_until: float = 0.0

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=503 if time.monotonic() < self.down_until else 200)

    async def _answer(self, request: Request) -> Response:
        prompt = json.loads(await request.body())["prompt"]
        self.arrived = time.monotonic()
        if self.arrived < self.down_until:
            return Response(status_code=503)
        self.flying.add(prompt)
        life = len(self.crashes)
        while time.monotonic() < self.arrived + 0.03 and life == len(self.crashes):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the rest of the cohort arrives
        if prompt.startswith("poison") and life == len(self.crashes):
            self.crashes.append(len(self.flying))
            self.down_until = time.monotonic() + self.restart
        elif life == len(self.crashes):
            await asyncio.sleep(0.02)  # a poison crashes before the others end
        self.flying.discard(prompt)
        if life < len(self.crashes):
            return self._broken()
        self.answered[prompt] += 1
        return JSONResponse({"choices": [{"text": prompt}]})

    def _broken(self) -> Response:
        if self.refusal is None:
            return StreamingResponse(self._nothing(), media_type="application/json")
        status, code = self.refusal
        return JSONResponse({"error": {"message": "lost", "code": code}}, status_code=status)


@pytest.fixture(params=[None, (503, "engine_failed")], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunningGateway, FragileEngine]]:
    with ExitStack() as stack:
        engine = FragileEngine(refusal=request.param)
        stack.enter_context(served(engine))
        yield stack.enter_context(gateway_of([engine.url], tmp_path, queue=QUEUE)), engine


def submit(client: Client, prompts: list[str]) -> str:
    items = [{"path": "/v1/completions", "body": {"model": "m", "prompt": each}} for each in prompts]
    return str(client.submit(items)["id"])


def counts(gateway: RunningGateway) -> Any:
    return httpx.get(f"{gateway.url}/v1/queue", timeout=60).json()["models"]


def states(client: Client, group: str) -> list[tuple[str, int]]:
    return [(each["state"], each["attempts"]) for each in client.results(group)]


def test_only_the_poison_becomes_a_dead_letter(pair) -> None:
    gateway, engine = pair
    number = 40
    prompts = [str(place) for place in range(number)]
    prompts[number // 2] = "poison"
    with Client(gateway.url) as client, worker_of(gateway.url, engine.url):
        ended = states(client, submit(client, prompts))
    expected = [("done", 1)] * number
    expected[number // 2] = ("dead", ATTEMPTS)
    assert ended == expected
    assert engine.answered == Counter(each for each in prompts if each != "poison"), "each is answered once"
    assert engine.crashes[-ATTEMPTS:] == [1] * ATTEMPTS
    assert len(engine.crashes) <= ATTEMPTS + 3, "40 in flight, then 10, then 2"


def test_several_poisons_among_two_workers(pair) -> None:
    gateway, engine = pair
    prompts = [f"poison {place}" if place in (3, 20) else str(place) for place in range(40)]
    with ExitStack() as stack:
        client = stack.enter_context(Client(gateway.url))
        other = FragileEngine(refusal=engine.refusal)
        stack.enter_context(served(other))
        for each in (engine, other):
            stack.enter_context(worker_of(gateway.url, each.url, concurrency=20))
        ended = states(client, submit(client, prompts))
    assert [state for state, _ in ended] == [
        "dead" if each.startswith("poison") else "done" for each in prompts
    ]
    assert all(attempts == 1 for state, attempts in ended if state == "done")
    assert sum((engine.answered + other.answered).values()) == 38


def test_errors_of_an_engine_that_is_no_longer_ready_are_a_crash(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(served(FragileEngine(refusal=(500, "internal_error"), restart=600.0)))
        gateway = stack.enter_context(gateway_of([engine.url], tmp_path, queue=QUEUE))
        client = stack.enter_context(Client(gateway.url))
        stack.enter_context(worker_of(gateway.url, engine.url))
        group = submit(client, ["poison", "other"])
        wait_until(lambda: engine.crashes)
        wait_until(lambda: counts(gateway) == {"m": {"queued": 2}})
        engine.restart = engine.down_until = 0.0
        assert states(client, group) == [("dead", ATTEMPTS), ("done", 1)]


def test_suspects_wait_for_a_busy_worker_to_drain(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, engine = pair
    monkeypatch.setattr(worker, "SUSPECTS_WAIT", 0.2)
    with Client(gateway.url) as client:
        group = submit(client, ["a", "b"])
        leases = Leases(gateway.store)
        first, second = leases.take("gone", ["m"], 2).result()
        lost = [(first.id, first.lease), (second.id, second.lease)]
        submit(client, [f"more {place}" for place in range(400)])
        with worker_of(gateway.url, engine.url, concurrency=4):
            wait_until(lambda: len(engine.answered) > 8)
            crash(gateway, lost)
            assert states(client, group) == [("done", 1)] * 2
            assert sum(engine.answered.values()) < 402, "other requests are waiting"
            client.clear_queue()


def crash(gateway: RunningGateway, lost: list[tuple[str, str]]) -> None:
    results = [
        {"id": id, "lease": lease, "error": "crash", "again": True, "in_flight": len(lost)}
        for id, lease in lost
    ]
    body: dict[str, Any] = {"worker": "gone", "results": results}
    reply = httpx.post(f"{gateway.url}/v1/queue/finish", json=body, timeout=60)
    assert reply.json()["verdicts"] == ["resting"] * len(lost)
