"""Models that load with the first request through the gateway, with a real supervisor and fake engines."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Rights
from rondo.supervisor.catalog import Loadable
from rondo.supervisor.control import ControlEndpoint
from support.on_demand import FakeFleet
from support.waiting import wait_until


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    made = FakeFleet(tmp_path / "engines", {"a": 60, "b": 60, "big": 200}, 100, restart_seconds=0.05)
    yield made
    made.on_demand.stop()


@pytest.fixture
def control(fleet: FakeFleet) -> Iterator[ControlEndpoint]:
    endpoint = ControlEndpoint()
    endpoint.begin(fleet.on_demand)
    yield endpoint
    endpoint.close()


@pytest.fixture
def gateway(control: ControlEndpoint, tmp_path: Path) -> Iterator[RunningGateway]:
    settings = {"supervisor": control.url, "supervisor_key": control.key}
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, **settings) as running:
        yield running


def ask(gateway: RunningGateway, model: str) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/completions", json={"model": model, "prompt": "x"}, timeout=240)


def test_the_first_requests_wait_for_one_engine(gateway: RunningGateway, fleet: FakeFleet) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: ask(gateway, name), ("a", "a", "a-hash", "m")))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200], answers[0].text
    assert fleet.starts("a") == 1


def test_models_are_listed_before_they_are_loaded(gateway: RunningGateway, fleet: FakeFleet) -> None:
    def listed() -> dict[str, bool]:
        cards = httpx.get(gateway.url + "/v1/models").json()["data"]
        return {card["id"]: card["loaded"] for card in cards}

    wait_until(lambda: listed() == {"m": True, "a": False, "b": False, "big": False})
    ask(gateway, "a")
    assert listed() == {"m": True, "a": True, "b": False, "big": False}
    assert httpx.get(gateway.url + "/v1/models/b").json()["object"] == "model"
    unloaded = httpx.post(gateway.url + "/v1/models/unload", json={"model": "a"})
    assert unloaded.status_code == 200
    wait_until(lambda: not listed()["a"])
    assert httpx.post(gateway.url + "/v1/models/load", json={"model": "a"}).status_code == 200
    assert listed()["a"]
    for verb in ("load", "unload"):
        assert httpx.post(f"{gateway.url}/v1/models/{verb}", json={"model": "none"}).status_code == 404


def test_an_engine_that_was_loaded_on_demand_is_unloaded_by_its_model(
    gateway: RunningGateway, fleet: FakeFleet
) -> None:
    assert ask(gateway, "a").status_code == 200
    rows = httpx.get(gateway.url + "/v1/engines").json()["data"]
    (id,) = [row["id"] for row in rows if "a" in row["models"]]
    refused = httpx.delete(f"{gateway.url}/v1/engines/{id}")
    assert (refused.status_code, "/v1/models/unload" in refused.text) == (409, True)
    assert ask(gateway, "a").status_code == 200
    (other,) = [row["id"] for row in rows if "m" in row["models"]]
    assert httpx.delete(f"{gateway.url}/v1/engines/{other}").status_code == 200


def test_a_killed_engine_is_replaced_within_the_request(gateway: RunningGateway, fleet: FakeFleet) -> None:
    assert ask(gateway, "a").status_code == 200
    os.kill(fleet.slot("a").part.pid, signal.SIGKILL)
    assert ask(gateway, "a").status_code == 200
    assert fleet.starts("a") == 2


def test_a_model_replaces_another_one_between_requests(gateway: RunningGateway, fleet: FakeFleet) -> None:
    for name in ("a", "b", "a"):
        assert ask(gateway, name).status_code == 200
    assert (fleet.starts("a"), fleet.starts("b")) == (2, 1)
    states = {row["id"]: row["state"] for row in httpx.get(gateway.url + "/v1/engines").json()["data"]}
    assert len(states) == 2


def test_failures_have_status_codes_and_causes(gateway: RunningGateway, fleet: FakeFleet) -> None:
    (fleet.folder / "a" / "fail").touch()
    for model, status, code in (
        ("a", 503, "model_load_failed"),
        ("big", 400, "model_too_large"),
        ("none", 404, "model_not_found"),
    ):
        answer = ask(gateway, model)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert fleet.starts("a") == 1


def test_adapters_join_the_engine_of_their_base(gateway: RunningGateway, fleet: FakeFleet) -> None:
    fleet.extra = [Loadable("lora", "", ("lora-hash",), adapter="/adapter", base="a")]
    wait_until(lambda: "lora" in httpx.get(gateway.url + "/v1/models").text)
    assert ask(gateway, "lora").status_code == 200
    assert ask(gateway, "lora-hash").status_code == 200
    assert fleet.starts("a") == 1


def test_a_key_without_the_model_does_not_load_it(
    fleet: FakeFleet, control: ControlEndpoint, tmp_path: Path
) -> None:
    settings = {"supervisor": control.url, "supervisor_key": control.key, "keys": "required"}
    with gateway_of([], tmp_path, **settings) as running:
        _, text = running.gateway.keys.make("b only", Rights(models=("b",))).result()
        headers = {"authorization": f"Bearer {text}"}
        body = {"model": "a", "prompt": "x"}
        assert httpx.post(running.url + "/v1/completions", json=body, headers=headers).status_code == 403
        names = [card["id"] for card in httpx.get(running.url + "/v1/models", headers=headers).json()["data"]]
        assert names == ["b"]
        for verb in ("load", "unload"):
            url = f"{running.url}/v1/models/{verb}"
            assert httpx.post(url, json={"model": "b"}, headers=headers).status_code == 403
    assert not fleet.starts("a")


def test_without_a_supervisor_that_answers_other_models_work(tmp_path: Path) -> None:
    settings = {"supervisor": "http://127.0.0.1:9", "supervisor_key": "k"}
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, **settings) as running:
        assert ask(running, "m").status_code == 200
        assert ask(running, "other").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "key", "status"),
    [
        ("GET", "/models", None, "wrong", 401),
        ("GET", "/models", None, "é", 401),
        ("POST", "/ensure", b"{}", None, 400),
        ("POST", "/ensure", b"[1]", None, 400),
        ("POST", "/ensure", b"\xff", None, 400),
        ("POST", "/ensure", b'{"model": "none"}', None, 404),
        ("POST", "/ensure", b"x" * 70_000, None, 400),
        ("POST", "/other", b"{}", None, 404),
        ("GET", "/models", None, None, 200),
    ],
)
def test_the_control_endpoint_checks_key_and_body(
    control: ControlEndpoint, method: str, path: str, body: bytes | None, key: str | None, status: int
) -> None:
    headers = {"authorization": f"Bearer {key or control.key}".encode()}
    answer = httpx.request(method, control.url + path, content=body, headers=headers)
    assert answer.status_code == status


def test_a_queued_request_of_an_unknown_model_is_refused_while_no_engine_is_loaded(
    fleet: FakeFleet, control: ControlEndpoint, tmp_path: Path
) -> None:
    settings = {"supervisor": control.url, "supervisor_key": control.key}
    with gateway_of([], tmp_path, **settings) as gateway:
        wait_until(lambda: gateway.gateway.loading.listed)
        statuses = [
            httpx.post(
                f"{gateway.url}/v1/queue/groups",
                json={"items": [{"path": "/v1/completions", "body": {"model": model, "prompt": "x"}}]},
                timeout=60,
            ).status_code
            for model in ("none", "big")
        ]
        assert statuses == [404, 201]
