"""Models of queued requests: adapters, aliases, unknown names, and engines and workers that vanish."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import NotFound
from rondo.client.http import Client
from rondo.gateway.queued.service import LEASING_SECONDS, WORKER_SECONDS
from support.waiting import wait_until
from worker.running import worker_of

BASE = {"id": "m", "object": "model", "aliases": ["also-m"]}
ADAPTER = {"id": "a-lora", "object": "model", "parent": "m"}


@dataclass
class Cards(Stub):
    """An engine with an alias and adapters. It refuses models that it does not have, and `raw` is its answer."""

    cards: list[dict[str, Any]] = field(default_factory=lambda: [BASE])
    raw: bytes = b""

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": self.cards})

    async def _answer(self, request: Request) -> Response:
        names = {name for card in self.cards for name in (card["id"], *card.get("aliases", ()))}
        asked = (await request.json())["model"]
        if asked not in names:
            self.requests.append({"model": asked})
            return JSONResponse({"error": {"message": "no", "code": "model_not_found"}}, 404)
        return (
            Response(self.raw, media_type="application/json") if self.raw else await super()._answer(request)
        )


def submit(client: Client, model: str) -> Any:
    body = {"model": model, "prompt": "x"}
    return client.submit([{"path": "/v1/completions", "body": body}])["id"]


def state(client: Client, group: str) -> dict[str, Any]:
    found: dict[str, Any] = client.queued_request(f"{group}_{0:09d}")
    return found


def test_requests_for_adapters_go_to_engines_that_have_them(tmp_path: Path) -> None:
    plain, own = Cards(), Cards(cards=[BASE, ADAPTER])
    with served(plain), served(own), gateway_of([plain.url, own.url], tmp_path) as gateway:
        with Client(gateway.url) as client, worker_of(gateway.url, plain.url):
            group = submit(client, "a-lora")
            (other,) = client.results(submit(client, "also-m"))
            assert other["state"] == "done"
            assert state(client, group)["state"] == "queued"
            with worker_of(gateway.url, own.url):
                (result,) = client.results(group)
                assert result["state"] == "done"
        assert "a-lora" not in [each.get("model") for each in plain.requests]


def test_a_model_that_was_unloaded_after_the_lease_costs_an_attempt_and_no_dead_letter(
    tmp_path: Path,
) -> None:
    stub = Cards(cards=[BASE, ADAPTER])
    queue = {"rest": 0.01, "longest_rest": 0.05, "attempts": 3, "sweep_every": 0.05}
    with (
        served(stub),
        gateway_of([stub.url], tmp_path, queue=queue) as gateway,
        Client(gateway.url) as client,
        worker_of(gateway.url, stub.url) as running,
    ):
        wait_until(lambda: running.worker._models)
        stub.cards = [BASE]
        group = submit(client, "a-lora")
        wait_until(lambda: stub.requests)
        wait_until(lambda: running.worker._models == ["m", "also-m"])
        assert state(client, group)["state"] != "dead"
        stub.cards = [BASE, ADAPTER]
        (result,) = client.results(group)
        assert (result["state"], result["attempts"]) == ("done", 2)


def test_a_response_that_is_not_utf_8_is_an_error_of_its_request_alone(tmp_path: Path) -> None:
    stub = Cards(raw=b'{"choices": [{"text": "\xff"}]}')
    queue = {"rest": 0.01, "longest_rest": 0.05, "attempts": 2, "sweep_every": 0.05}
    with served(stub), gateway_of([stub.url], tmp_path, queue=queue) as gateway:
        with Client(gateway.url) as client, worker_of(gateway.url, stub.url):
            (result,) = client.results(submit(client, "m"))
            assert result["error"] == {"reason": "the engine's response is not JSON"}
        result = b'{"worker":"w","results":[{"id":"r","lease":"l","result":{"body":"\xff"}}]}'
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{gateway.url}/v1/queue/finish", content=result, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "results")


def in_loop(gateway: RunningGateway, call: Any) -> Any:
    async def main() -> Any:
        return call()

    return asyncio.run_coroutine_threadsafe(main(), gateway.loop).result(60)


def test_vanished_workers_and_engines_serve_nothing(tmp_path: Path) -> None:
    stub = Cards(cards=[BASE, ADAPTER])
    with served(stub), gateway_of([stub.url], tmp_path) as gateway:
        service = gateway.gateway.queue
        worker = in_loop(gateway, lambda: service.note_worker("w", ["other"]))
        assert in_loop(gateway, service.served) == {"m", "also-m", "a-lora", "other"}
        worker.called -= LEASING_SECONDS + 1
        stub.ready = False
        wait_until(lambda: in_loop(gateway, service.served) == set())
        assert service.models() == {"m", "also-m", "a-lora", "other"}
        listed = httpx.get(f"{gateway.url}/v1/queue/workers", timeout=60).json()["data"]
        assert [each["name"] for each in listed] == ["w"]
        worker.called -= WORKER_SECONDS
        assert service.models() == {"m", "also-m", "a-lora"}
        assert httpx.get(f"{gateway.url}/v1/queue/workers", timeout=60).json()["data"] == []


def test_the_default_model_is_neither_an_adapter_nor_an_alias(tmp_path: Path) -> None:
    stub = Cards(cards=[ADAPTER, BASE])
    with served(stub), gateway_of([stub.url], tmp_path) as gateway:
        service = gateway.gateway.queue
        assert in_loop(gateway, service.default_model) == "m"
        stub.ready = False
        wait_until(lambda: not gateway.gateway.fleet.models())
        with pytest.raises(NotFound):
            in_loop(gateway, service.default_model)
        in_loop(gateway, lambda: service.note_worker("w", ["m", "also-m", "a-lora"]))
        assert in_loop(gateway, service.default_model) == "m"


def test_workers_that_poll_while_the_gateway_shuts_down_are_told_to_wait(tmp_path: Path) -> None:
    with served(Cards()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        in_loop(gateway, gateway.store.signals.close)
        for path, call in (
            ("queue/leases", {"worker": "w", "models": ["m"]}),
            ("generate/get_work", {"batch_size": 1}),
        ):
            answer = httpx.post(f"{gateway.url}/v1/{path}", json=call, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
