"""Requests to models through the gateway: what passes, what is retried, and what a failure looks like."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import USAGE, RunningGateway, Stub, gateway_of, served
from support.waiting import wait_until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
CHAT = "/v1/chat/completions"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RunningGateway, Stub, Stub]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(served(Stub())) for _ in range(2))
        yield stack.enter_context(gateway_of([first.url, second.url], tmp_path)), first, second


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[RunningGateway, Stub]]:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        yield gateway, stub


def post(gateway: RunningGateway, body: Any = BODY, path: str = CHAT, **options: Any) -> httpx.Response:
    return httpx.post(gateway.url + path, json=body, timeout=60, **options)


def test_a_response_passes_unchanged_but_for_headers_of_the_connection(one) -> None:
    gateway, stub = one
    response = post(gateway, headers={"x-request-id": "trace-7", "x-custom": "kept"})
    assert response.status_code == 200
    assert response.json()["choices"] == [{"text": "ünï"}]
    assert response.headers["x-request-id"] == "trace-7"
    assert response.headers["x-rondo-ignored"] == "seed"
    (seen,) = stub.requests
    assert seen["headers"]["x-request-id"] == "trace-7"
    assert seen["headers"]["x-custom"] == "kept"
    assert seen["body"] == BODY


def test_an_engines_error_passes_with_its_status(one) -> None:
    gateway, stub = one
    stub.mode = "error"
    response = post(gateway)
    assert (response.status_code, response.json()) == (400, {"error": {"message": "no such field"}})
    assert len(stub.requests) == 1


def test_a_stream_that_the_client_leaves_is_charged_by_its_prompt_and_events(one) -> None:
    gateway, stub = one
    stub.mode = "endless"
    for path in (CHAT, "/v1/responses"):
        body = BODY | {"stream": True, "messages": "x" * 400, "input": "x" * 400}
        with httpx.stream("POST", gateway.url + path, json=body, timeout=60) as response:
            received = b""
            for part in response.iter_bytes():
                received += part
                if received.count(b"data:") == 2:
                    break
    wait_until(lambda: gateway.gateway.forward.active == 0)
    (row,) = usage_of(gateway)
    assert (row["requests"], row["output_tokens"]) == (2, 4)
    assert 200 <= row["input_tokens"] <= 420


@pytest.mark.parametrize("options", [{"include_usage": False}, {}, None, {"include_obfuscation": True}])
def test_options_of_a_stream_do_not_prevent_metering(one, options: Any) -> None:
    gateway, stub = one
    response = post(gateway, BODY | {"stream": True, "stream_options": options})
    assert '"choices":[]' not in response.text
    assert stub.requests[0]["body"]["stream_options"] == (options or {}) | {"include_usage": True}
    (row,) = usage_of(gateway)
    assert (row["input_tokens"], row["output_tokens"]) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


def usage_of(gateway: RunningGateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = httpx.get(gateway.url + "/v1/usage").json()["data"]
    return rows


@pytest.mark.parametrize("asked", [False, True])
def test_the_event_of_token_counts_reaches_only_clients_that_asked_for_it(one, asked: bool) -> None:
    gateway, stub = one
    body = BODY | {"stream": True} | ({"stream_options": {"include_usage": True}} if asked else {})
    response = post(gateway, body)
    events = [line for line in response.text.split("\n\n") if line]
    assert len(events) == (4 if asked else 3)
    assert events[-1] == "data: [DONE]"
    assert ('"choices":[]' in response.text) == asked
    assert stub.requests[0]["body"]["stream_options"] == {"include_usage": True}
    rows = httpx.get(gateway.url + "/v1/usage").json()["data"]
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [
        (USAGE["prompt_tokens"], USAGE["completion_tokens"])
    ]


@pytest.mark.parametrize("mode", ["refuse", "die"])
def test_before_the_first_byte_another_engine_is_tried(pair, mode: str) -> None:
    gateway, first, second = pair
    first.mode = mode
    answers = [post(gateway).json()["from"] for _ in range(4)]
    assert answers == [second.url] * 4
    assert first.requests


def test_where_no_other_engine_is_left_the_refusal_passes(pair) -> None:
    gateway, first, second = pair
    first.mode = second.mode = "refuse"
    response = post(gateway)
    assert (response.status_code, response.json()) == (503, {"error": {"message": "full"}})


def test_an_engine_that_dies_without_a_substitute_is_a_503_with_its_reason(one) -> None:
    gateway, stub = one
    stub.mode = "die"
    response = post(gateway)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"


def test_a_stream_that_breaks_off_ends_with_an_error_event_and_is_not_repeated(pair) -> None:
    gateway, first, second = pair
    first.mode = second.mode = "cut"
    response = post(gateway, BODY | {"stream": True})
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert json.loads(events[-1])["error"]["code"] == "engine_failed"
    assert len(first.requests) + len(second.requests) == 1


def test_a_stream_that_ends_within_its_first_event_begins_anew_elsewhere(pair) -> None:
    gateway, first, _ = pair
    whole = post(gateway, BODY | {"stream": True}).text
    first.mode = "half"
    assert [post(gateway, BODY | {"stream": True}).text for _ in range(3)] == [whole] * 3
    assert any(each["body"]["stream"] for each in first.requests)


def test_pages_of_allowed_origins_may_call_and_read_the_limits(tmp_path: Path) -> None:
    with (
        served(Stub()) as stub,
        gateway_of([stub.url], tmp_path, cors_origins=["https://a.example"]) as gateway,
    ):
        own = {"origin": "https://a.example"}
        response = post(gateway, headers=own)
        assert response.status_code == 200
        exposed = response.headers["access-control-expose-headers"].split(", ")
        assert "x-ratelimit-remaining-tokens" in exposed
        assert not any("*" in name for name in exposed)
        other = post(gateway, headers={"origin": "https://b.example"})
        assert other.json()["error"]["code"] == "origin_not_allowed"
        asked = own | {"access-control-request-method": "POST"}
        preflight = httpx.options(gateway.url + CHAT, headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        assert (
            "access-control-allow-origin"
            not in httpx.options(gateway.url + CHAT, headers=asked | {"origin": "https://b.example"}).headers
        )


def test_each_origin_may_call_where_all_are_allowed(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, cors_origins=["*"]) as gateway:
        assert post(gateway, headers={"origin": "https://any.example"}).status_code == 200


def test_a_large_body_names_the_setting_of_the_gateway(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, max_body_bytes=2000) as gateway:
        for path in (CHAT, "/v1/responses"):
            response = post(gateway, BODY | {"user": "x" * 3000}, path)
            assert response.status_code == 413
            assert " gateway.max_body_bytes." in response.json()["error"]["message"]
        large = post(gateway, {"name": "x" * (9 << 20)}, "/v1/keys")
        assert large.status_code == 413
        assert "max_body_bytes" not in large.json()["error"]["message"]


def test_when_the_client_leaves_the_engine_stops(one) -> None:
    gateway, stub = one
    stub.mode = "endless"
    with httpx.stream("POST", gateway.url + CHAT, json=BODY | {"stream": True}, timeout=60) as response:
        next(response.iter_bytes())
    assert stub.gone.wait(60)
    wait_until(lambda: gateway.gateway.forward.active == 0)
    assert gateway.gateway.fleet.router.instances[0].requests == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b"{}", 400, "missing_model"),
        (b'{"model": 5}', 400, "missing_model"),
        (b'{"model": "x"}', 404, "model_not_found"),
        (b'{"model": "m", "prompt": "' + b"x" * 3000 + b'"}', 413, "body_too_large"),
    ],
)
def test_bodies_that_cannot_be_routed_are_refused_here(tmp_path, body: bytes, status: int, code: str) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, max_body_bytes=2048) as gateway:
        response = httpx.post(gateway.url + CHAT, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert not stub.requests


def test_other_types_than_json_are_refused(one) -> None:
    gateway, _ = one
    response = httpx.post(gateway.url + CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415


def test_while_engines_start_an_unknown_model_may_come_later(tmp_path: Path) -> None:
    with gateway_of(["http://127.0.0.1:9"], tmp_path) as gateway:
        response = post(gateway)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engines_starting")
        assert response.headers["retry-after"] == "1"
        health = httpx.get(gateway.url + "/v1/health")
        assert (health.status_code, health.json()["status"]) == (503, "degraded")
        assert httpx.get(gateway.url + "/ready").status_code == 503
        assert httpx.get(gateway.url + "/health").status_code == 200


def test_an_engine_that_does_not_start_in_time_is_unreachable(tmp_path: Path) -> None:
    with gateway_of(["http://127.0.0.1:9"], tmp_path, start_seconds=5.0) as gateway:
        assert post(gateway).json()["error"]["code"] == "engines_starting"
        [engine] = gateway.gateway.fleet.engines.values()
        engine.added -= 5.0
        wait_until(lambda: engine_of(gateway)["state"] == "unreachable")
        assert post(gateway).status_code == 404


def test_an_engine_that_refuses_the_key_is_unreachable_with_the_remedy(tmp_path: Path) -> None:
    with served(Stub(key="k")) as stub:
        with gateway_of([stub.url], tmp_path) as gateway:
            engine = engine_of(gateway)
            assert engine["state"] == "unreachable"
            assert "gateway.engine_key" in engine["error"]
            assert post(gateway).status_code == 404
        with gateway_of([stub.url], tmp_path, engine_key="k") as gateway:
            assert engine_of(gateway)["state"] == "ready"


def test_restarts_count_lost_connections_and_no_pauses(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        for ready in (False, True):
            stub.ready = ready
            wait_until(lambda wanted=ready: (engine_of(gateway)["state"] == "ready") == wanted)
        assert engine_of(gateway)["restarts"] == 0
        engine = next(iter(gateway.gateway.fleet.engines.values()))
        engine.instance.url, url = "http://127.0.0.1:9", engine.instance.url
        wait_until(lambda: engine_of(gateway)["state"] == "unreachable")
        engine.instance.url = url
        wait_until(lambda: engine_of(gateway)["restarts"] == 1)


def test_the_tokenizer_of_a_model_is_read_from_its_engine(one) -> None:
    gateway, stub = one
    assert httpx.get(gateway.url + "/tokenizer_info").json() == {"tokenizer_class": "m"}
    assert httpx.get(gateway.url + "/tokenizer_info?model=m").status_code == 200
    assert httpx.get(gateway.url + "/tokenizer_info?model=x").status_code == 404
    stub.models.append("n")
    wait_until(lambda: httpx.get(gateway.url + "/tokenizer_info").status_code == 400)


def engine_of(gateway: RunningGateway) -> dict[str, Any]:
    (engine,) = httpx.get(gateway.url + "/v1/engines").json()["data"]
    return dict(engine)


def test_an_engine_that_recovers_gets_requests_again(one) -> None:
    gateway, stub = one
    stub.ready = False
    wait_until(lambda: httpx.get(gateway.url + "/ready").status_code == 503)
    assert post(gateway).json()["error"]["code"] == "no_engine_ready"
    stub.ready = True
    wait_until(lambda: post(gateway).status_code == 200)


def test_a_drained_engine_finishes_and_gets_nothing_new(pair) -> None:
    gateway, first, second = pair
    id = first.url.removeprefix("http://")
    assert httpx.post(f"{gateway.url}/v1/engines/{id}/drain").json()["state"] == "draining"
    assert {post(gateway).json()["from"] for _ in range(3)} == {second.url}
    assert httpx.post(f"{gateway.url}/v1/engines/{id}/resume").json()["state"] == "ready"
    assert {post(gateway).json()["from"] for _ in range(4)} == {first.url, second.url}


def test_engines_are_registered_and_removed_by_api(one) -> None:
    gateway, _ = one
    with served(Stub(models=["other"])) as further:
        made = httpx.post(gateway.url + "/v1/engines", json={"url": further.url})
        assert made.status_code == 201
        wait_until(lambda: post(gateway, BODY | {"model": "other"}).status_code == 200)
        assert [card["id"] for card in httpx.get(gateway.url + "/v1/models").json()["data"]] == ["m", "other"]
        assert httpx.post(gateway.url + "/v1/engines", json={"url": further.url}).status_code == 409
        assert httpx.delete(f"{gateway.url}/v1/engines/{made.json()['id']}").status_code == 200
        assert post(gateway, BODY | {"model": "other"}).status_code == 404
    wrong = httpx.post(gateway.url + "/v1/engines", json={"url": "file:///etc/passwd"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "url")


def test_draining_refuses_new_requests_and_waits_for_the_others(one) -> None:
    gateway, stub = one
    stub.mode = "stall"
    answered: list[int] = []

    def send() -> None:
        answered.append(post(gateway).status_code)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: stub.requests)
    gateway.gateway.forward.closing = True
    refused = post(gateway)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    wait_until(lambda: gateway.gateway.forward.active == 1)
    stub.released.set()
    thread.join(60)
    assert answered == [200]
