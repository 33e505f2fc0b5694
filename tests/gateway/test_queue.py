"""Requests that find all engines full: order, expiry, bounds, preemption and clients that leave."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Key, Rights, ServiceTier
from rondo.control.keys import Keys
from rondo.gateway.proxy.fields import read_fields
from rondo.gateway.proxy.ticket import Forwarded, Pass, ticket_of
from support.waiting import wait_until

CHAT = "/v1/chat/completions"


def body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | fields


@contextmanager
def full(folder: Path, places: int = 1, **settings: Any) -> Iterator[tuple[RunningGateway, Stub]]:
    """One engine with `places` that stalls until it is released."""
    router = {"requests_per_engine": places} | settings
    with served(Stub(mode="stall")) as stub, gateway_of([stub.url], folder, router=router) as gateway:
        try:
            yield gateway, stub
        finally:
            stub.released.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads


Send = Callable[..., Future[httpx.Response]]


def sender(pool: ThreadPoolExecutor, gateway: RunningGateway) -> Send:
    def send(text: str = "hi", key: str | None = None, tier: str | None = None, **fields: Any) -> Any:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        headers |= {} if tier is None else {"x-service-tier": tier}
        return pool.submit(
            httpx.post, gateway.url + CHAT, json=body(text, **fields), headers=headers, timeout=120
        )

    return send


def waiting(gateway: RunningGateway) -> dict[str, int]:
    found: dict[str, int] = httpx.get(gateway.url + "/v1/engines", timeout=60).json()["queue"]["waiting"]
    return found


def texts(stub: Stub) -> list[str]:
    return [each["body"]["messages"][0]["content"] for each in stub.requests]


def test_requests_wait_and_are_sent_by_tier_then_in_order(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path, preemptions=0) as (gateway, stub):
        send = sender(pool, gateway)
        answers = [send("first")]
        wait_until(lambda: stub.requests)
        for count, (text, tier) in enumerate(
            [("flex", "flex"), ("a", None), ("b", "default"), ("urgent", "priority")], 1
        ):
            answers.append(send(text, tier=tier))
            wait_until(lambda count=count: sum(waiting(gateway).values()) == count)
        assert waiting(gateway) == {"priority": 1, "default": 2, "flex": 1}
        metrics = httpx.get(gateway.url + "/metrics", timeout=60).text
        assert 'rondo:gateway_queue_requests{tier="default"} 2.0' in metrics
        stub.released.set()
        assert {each.result().status_code for each in answers} == {200}
        assert texts(stub) == ["first", "urgent", "a", "b", "flex"]
        assert answers[4].result().headers["x-service-tier"] == "priority"
        assert "x-service-tier" not in answers[2].result().headers
        assert sum(waiting(gateway).values()) == 0


def test_the_capacity_is_the_engines_largest_batch_and_a_backlog(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    stub = Stub(mode="stall", max_running=2)
    with served(stub), gateway_of([stub.url], tmp_path, router={"backlog": 1}) as gateway:
        assert httpx.get(gateway.url + "/v1/engines", timeout=60).json()["data"][0]["capacity"] == 3
        answers = [sender(pool, gateway)() for _ in range(5)]
        wait_until(lambda: waiting(gateway)["default"] == 2 and len(stub.requests) == 3)
        stub.released.set()
        assert [each.result().status_code for each in answers] == [200] * 5


def test_the_tier_of_a_body_counts_and_a_key_limits_it(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path, preemptions=0) as (gateway, stub):
        send = sender(pool, gateway)
        keys = Keys(gateway.store)
        plain = keys.make("plain").result()[1]
        first_class = keys.make("first class", Rights(service_tier="priority")).result()[1]
        answers = [send("first")]
        wait_until(lambda: stub.requests)
        for count, (key, fields) in enumerate(
            [
                (plain, {"service_tier": "priority"}),
                (first_class, {"service_tier": "priority"}),
                (first_class, {"service_tier": "auto"}),
                (first_class, {"priority": -5}),
                (plain, {"priority": 5}),
            ],
            1,
        ):
            answers.append(send(key=key, **fields))
            wait_until(lambda count=count: sum(waiting(gateway).values()) == count)
        assert waiting(gateway) == {"priority": 2, "default": 2, "flex": 1}
        stub.released.set()
        assert [each.result().headers.get("x-service-tier") for each in answers] == [
            *(None, "default", "priority", None, "priority", "flex")
        ]
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        wrong = httpx.post(gateway.url + CHAT, json=body(), headers={"x-service-tier": "best"}, timeout=60)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_service_tier")


def test_keys_share_an_engine(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path) as (gateway, stub):
        send = sender(pool, gateway)
        many, few = (Keys(gateway.store).make(name).result()[1] for name in ("many", "few"))
        answers = [send("first")]
        wait_until(lambda: stub.requests)
        answers += [send("many", key=many) for _ in range(12)]
        wait_until(lambda: waiting(gateway)["default"] == 12)
        answers += [send("few", key=few) for _ in range(3)]
        wait_until(lambda: waiting(gateway)["default"] == 15)
        stub.released.set()
        assert {each.result().status_code for each in answers} == {200}
        assert texts(stub)[1:8].count("few") == 3


def test_a_request_that_waits_too_long_is_answered(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path, queue_seconds=0.3) as (gateway, stub):
        first = sender(pool, gateway)()
        wait_until(lambda: stub.requests)
        late = sender(pool, gateway)().result()
        assert (late.status_code, late.json()["error"]["code"]) == (429, "queue_timeout")
        assert int(late.headers["retry-after"]) >= 1
        stub.ready = False
        wait_until(lambda: httpx.get(gateway.url + "/ready", timeout=60).status_code == 503)
        stub.released.set()
        assert first.result().status_code == 200


def test_without_a_ready_engine_the_end_of_the_wait_is_a_503(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with full(tmp_path, queue_seconds=2.0) as (gateway, stub):
        sender(pool, gateway)()
        wait_until(lambda: stub.requests)
        second = sender(pool, gateway)()
        wait_until(lambda: waiting(gateway)["default"] == 1)
        stub.ready = False
        late = second.result()
        assert (late.status_code, late.json()["error"]["code"]) == (503, "no_engine_ready")
        assert late.headers["retry-after"]


def test_a_full_queue_refuses_and_a_higher_tier_takes_a_place(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with full(tmp_path, queue_requests=1, preemptions=0) as (gateway, stub):
        send = sender(pool, gateway)
        first = send()
        wait_until(lambda: stub.requests)
        lower = send("lower")
        wait_until(lambda: waiting(gateway)["default"] == 1)
        refused = send("refused").result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        higher = send("higher", tier="priority")
        displaced = lower.result()
        assert (displaced.status_code, displaced.json()["error"]["code"]) == (429, "queue_full")
        assert displaced.headers["retry-after"]
        stub.released.set()
        assert (first.result().status_code, higher.result().status_code) == (200, 200)
        assert texts(stub) == ["hi", "higher"]


def test_the_queue_is_bounded_in_bytes(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path, queue_bytes=1000) as (gateway, stub):
        sender(pool, gateway)()
        wait_until(lambda: stub.requests)
        refused = sender(pool, gateway)("x" * 2000).result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")


def test_clients_that_leave_give_up_their_places(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path) as (gateway, stub):
        first = sender(pool, gateway)()
        wait_until(lambda: stub.requests)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(gateway.url + CHAT, json=body("gone"), timeout=httpx.Timeout(30, read=0.3))
        wait_until(lambda: sum(waiting(gateway).values()) == 0)
        last = sender(pool, gateway)("last")
        wait_until(lambda: waiting(gateway)["default"] == 1)
        stub.released.set()
        assert (first.result().status_code, last.result().status_code) == (200, 200)
        assert texts(stub) == ["hi", "last"]
        wait_until(lambda: gateway.gateway.forward.active == 0)
        assert gateway.gateway.fleet.router.instances[0].requests == 0


def test_a_running_request_without_a_byte_returns_to_the_queue_for_a_higher_tier(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with full(tmp_path, preemptions=1) as (gateway, stub):
        send = sender(pool, gateway)
        lower = send("lower", stream=True)
        wait_until(lambda: stub.requests)
        higher = send("higher", tier="priority")
        wait_until(lambda: texts(stub) == ["lower", "higher"])
        assert waiting(gateway)["default"] == 1
        stub.released.set()
        assert higher.result().status_code == 200
        assert lower.result().text.endswith("data: [DONE]\n\n")
        assert texts(stub) == ["lower", "higher", "lower"]
        metrics = httpx.get(gateway.url + "/metrics", timeout=60).text
        assert 'rondo:gateway_preempted_total{state="running",tier="default"}' in metrics
        wait_until(lambda: gateway.gateway.fleet.router.instances[0].requests == 0)


def test_a_request_yields_a_bounded_number_of_times_and_never_to_its_own_tier(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with full(tmp_path, preemptions=1) as (gateway, stub):
        send = sender(pool, gateway)
        answers = [send("lower")]
        wait_until(lambda: stub.requests)
        answers.append(send("equal"))
        wait_until(lambda: waiting(gateway)["default"] == 1)
        answers.append(send("higher", tier="priority"))
        wait_until(lambda: texts(stub) == ["lower", "higher"])
        stub.mode = "ok"
        stub.released.set()
        wait_until(lambda: all(each.done() for each in answers))
        assert texts(stub) == ["lower", "higher", "lower", "equal"]


def test_a_request_that_is_placed_and_preempted_in_one_turn_of_the_loop_returns_to_the_queue(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with full(tmp_path) as (gateway, stub):
        gate, loop = gateway.gateway.forward.gate, gateway.loop
        stub.released.set()

        async def occupy() -> Pass:
            await gate.enter(blocker := _pass("default"))
            blocker.task = None
            return blocker

        async def preempt(blocker: Pass) -> None:
            gate.leave(blocker, True)  # places the waiting request, whose task has not resumed
            urgent = _pass("priority")
            await gate.enter(urgent)
            gate.leave(urgent, True)

        blocker = asyncio.run_coroutine_threadsafe(occupy(), loop).result(60)
        lower = sender(pool, gateway)("lower", tier="flex")
        wait_until(lambda: waiting(gateway)["flex"] == 1)
        asyncio.run_coroutine_threadsafe(preempt(blocker), loop).result(60)
        assert lower.result().status_code == 200
        metrics = httpx.get(gateway.url + "/metrics", timeout=60).text
        assert 'rondo:gateway_preempted_total{state="running",tier="flex"}' in metrics
        wait_until(lambda: gateway.gateway.fleet.router.instances[0].requests == 0)


def _pass(tier: ServiceTier) -> Pass:
    """A request of the running task."""
    sent = json.dumps(body() | {"service_tier": tier}).encode()
    key = Key("k", "k", Rights("admin"), 0)
    return ticket_of(Forwarded(CHAT, key, read_fields(sent), sent, [], "r"), 1.0)


def test_a_stream_that_has_begun_is_not_preempted(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path) as (gateway, stub):
        stub.mode = "endless"
        ended = threading.Event()
        begun = threading.Event()

        def read() -> None:
            with httpx.stream(
                "POST", gateway.url + CHAT, json=body("lower", stream=True), timeout=120
            ) as response:
                for _ in response.iter_bytes():
                    begun.set()
                    if ended.is_set():
                        return

        reader = pool.submit(read)
        assert begun.wait(60)
        higher = sender(pool, gateway)("higher", tier="priority")
        wait_until(lambda: waiting(gateway)["priority"] == 1)
        assert texts(stub) == ["lower"]
        stub.mode = "ok"
        ended.set()
        reader.result()
        assert higher.result().status_code == 200


def test_counting_tokens_takes_no_place(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with full(tmp_path) as (gateway, stub):
        first = sender(pool, gateway)()
        wait_until(lambda: stub.requests)
        stub.mode = "ok"
        count = httpx.post(gateway.url + "/tokenize", json={"model": "m", "prompt": "x"}, timeout=60)
        assert count.status_code == 200
        stub.released.set()
        assert first.result().status_code == 200
