"""Engines that stall, break off or answer with malformed HTTP: the client gets the answer of another engine, an error
with its reason, or an end of the stream that no client takes for a complete one."""

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.config import RouterConfig
from rondo.gateway.fleet import MODELS_EVERY
from support.raw_http import MODELS, RawEngine, connect, raw_engine, read_all, request, response
from support.waiting import wait_until

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
BODY = {"model": "m", "prompt": "a"}
QUICK = {"stall_seconds": 1.0, "router": RouterConfig(failures=10**6)}


def chunked(*parts: bytes, kind: bytes = b"text/event-stream") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % kind
    return head + b"".join(parts)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


BEFORE = {
    "nothing": b"",
    "TLS": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "HTTP/0.9": b"hello",
    "status 99": b"HTTP/1.1 99 X\r\n\r\n",
    "status 1000": b"HTTP/1.1 1000 X\r\nContent-Length: 0\r\n\r\n",
    "status that is no number": b"HTTP/1.1 abc X\r\n\r\n",
    "half of a head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "head without body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "negative length": response(length=-1),
    "huge length": response(length=10**30),
    "two lengths": response(b"{}", b"Content-Length: 3"),
    "length and chunks": response(b"2\r\n{}\r\n0\r\n\r\n", b"Transfer-Encoding: chunked"),
    "body longer than its length": response(b"{}xxxx", length=2),
    "chunk that is none": chunked(b"zz\r\n{}\r\n"),
    "huge chunk": chunked(b"f" * 20 + b"\r\n{}"),
    "half of an event": chunked(chunk(EVENT[:9])),
    "carriage return in a header": response(b"{}", b"X-A: a\rX-B: b"),
    "zero byte in a header": response(b"{}", b"X-A: a\x00b"),
    "escape in a header": response(b"{}", b"X-A: a\x1b[31m"),
    "name with a space": response(b"{}", b"X A: b"),
    "long header": response(b"{}", b"X-A: " + b"a" * 100_000),
    "many headers": response(b"{}", *[b"X-A: b"] * 50_000),
    "other protocol": b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
}
"""Before a byte that could be passed on."""


@pytest.fixture(scope="module")
def faulty() -> Iterator[RawEngine]:
    with raw_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(faulty: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway of the faulty engine."""
    with gateway_of([faulty.url], tmp_path_factory.mktemp("alone"), **QUICK) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def beside(faulty: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway of the faulty engine and a good one."""
    with served(Stub()) as good:
        folder = tmp_path_factory.mktemp("beside")
        with gateway_of([faulty.url, good.url], folder, **QUICK) as gateway:
            yield gateway


def check(alone: RunningGateway, beside: RunningGateway, faulty: RawEngine, stream: bool = False) -> None:
    body, before = BODY | {"stream": stream}, faulty.posts
    wait_until(lambda: _ready(alone.url) == 1)
    answer = httpx.post(alone.url + "/v1/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    repeated = (
        faulty.posts - before
    )  # once, if the connection may have been an idle one that the engine closed
    assert 1 <= repeated <= 2
    for _ in range(2):
        assert httpx.post(beside.url + "/v1/completions", json=body, timeout=60).status_code == 200
    for gateway in (alone, beside):
        wait_until(lambda gateway=gateway: gateway.gateway.forward.active == 0)


@pytest.mark.parametrize("name", BEFORE)
def test_another_engine_answers_or_a_503_has_the_reason(alone, beside, faulty: RawEngine, name: str) -> None:
    faulty.answer = lambda connection: connection.sendall(BEFORE[name])
    check(alone, beside, faulty, stream=name == "half of an event")


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Ty", response(b"", length=9), chunked(b"5\r\nab")]
)
def test_an_engine_that_stalls_before_its_answer_is_replaced(
    alone, beside, faulty: RawEngine, sent: bytes
) -> None:
    faulty.answer = _stalling(sent)
    check(alone, beside, faulty, stream=True)


def test_an_engine_that_stalls_within_a_stream_ends_it_with_an_error(alone, faulty: RawEngine) -> None:
    faulty.answer = _stalling(chunked(chunk(EVENT)))
    wait_until(lambda: _ready(alone.url) == 1)
    answer = httpx.post(alone.url + "/v1/completions", json=BODY | {"stream": True}, timeout=60)
    first, last = (json.loads(event[6:]) for event in answer.text.strip().split("\n\n"))
    assert first["choices"]
    assert last["error"]["code"] == "engine_failed"


def test_an_engine_that_accepts_and_sends_nothing_is_not_ready(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with closing(listener), pytest.MonkeyPatch.context() as patch, served(Stub(models=["other"])) as good:
        patch.setattr("rondo.gateway.proxy.upstream.CHECK_SECONDS", 0.3)
        silent = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with gateway_of([silent, good.url], tmp_path) as gateway:
            answer = httpx.post(gateway.url + "/v1/completions", json=BODY, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engines_starting")
            other = httpx.post(gateway.url + "/v1/completions", json=BODY | {"model": "other"}, timeout=60)
            assert other.status_code == 200
            states = httpx.get(gateway.url + "/v1/engines").json()["data"]
            assert {each["state"]: each["error"] for each in states}["starting"].startswith("TimeoutError")


CUT = {
    "length not reached": response(b'{"a":', length=100),
    "chunks without an end": chunked(chunk(b'{"a":'), kind=b"application/json"),
    "malformed second chunk": chunked(chunk(b'{"a":'), b"zz\r\n", kind=b"application/json"),
}


@pytest.mark.parametrize("name", CUT)
def test_a_json_response_that_breaks_off_closes_the_connection(
    alone, faulty: RawEngine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.answer = _in_two(CUT[name], b'{"a":')
    wait_until(lambda: _ready(alone.url) == 1)
    with caplog.at_level(logging.INFO), closing(connect(alone.url)) as connection:
        connection.sendall(request())
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert not answer.endswith(b"0\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]
    wait_until(lambda: alone.gateway.forward.active == 0)


def test_a_stream_whose_later_part_is_malformed_ends_with_an_error(alone, faulty: RawEngine) -> None:
    faulty.answer = _in_two(chunked(chunk(EVENT), b"zz\r\n"), EVENT)
    wait_until(lambda: _ready(alone.url) == 1)
    answer = httpx.post(alone.url + "/v1/completions", json=BODY | {"stream": True}, timeout=60)
    assert '"engine_failed"' in answer.text


def test_headers_of_the_connection_are_dropped(alone, faulty: RawEngine) -> None:
    lines = (b"X-B: caf\xe9", b"X-Request-Id: other", b"Connection: X-C", b"Server: x")
    faulty.answer = lambda connection: connection.sendall(response(b"{}", *lines))
    wait_until(lambda: _ready(alone.url) == 1)
    headers = {"x-request-id": "mine"}
    answer = httpx.post(alone.url + "/v1/completions", json=BODY, headers=headers, timeout=60)
    assert answer.status_code == 200
    assert dict(answer.headers.raw)[b"x-b"] == b"caf\xe9"
    assert (answer.headers["x-request-id"], answer.headers.get("server")) == ("mine", None)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + response(), 200),
        (b"HTTP/1.1 204 No\r\n\r\n", 204),
        (response(b"", b"Location: http://127.0.0.1:1/", status=b"302 Found"), 302),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Type: ;;;\r\nContent-Length: 2\r\n\r\n{}", 200),
        (response(b"", status=b"500 X"), 500),
    ],
)
def test_unusual_responses_pass(alone, faulty: RawEngine, sent: bytes, status: int) -> None:
    faulty.answer = lambda connection: connection.sendall(sent)
    wait_until(lambda: _ready(alone.url) == 1)
    assert httpx.post(alone.url + "/v1/completions", json=BODY, timeout=60).status_code == status


def test_a_connection_that_the_engine_closed_is_not_used_again(alone, faulty: RawEngine) -> None:
    faulty.answer = lambda connection: connection.sendall(response())
    wait_until(lambda: _ready(alone.url) == 1)
    with httpx.Client(base_url=alone.url, timeout=60) as client:
        for _ in range(20):
            assert client.post("/v1/completions", json=BODY).status_code == 200


REPORTS: dict[str, tuple[bytes, bytes]] = {
    "models: no JSON": (b"/v1/models", response(b"<html>")),
    "models: NaN": (b"/v1/models", response(b'{"data":[{"id":"m","x":NaN}]}')),
    "models: lone surrogate": (b"/v1/models", response(rb'{"data":[{"id":"\ud800"}]}')),
    "models: a list": (b"/v1/models", response(b"[1]")),
    "models: texts": (b"/v1/models", response(b'{"data":["m"]}')),
    "models: no data": (b"/v1/models", response(b'{"data":5}')),
    "models: deep": (b"/v1/models", response(b"[" * 100_000 + b"]" * 100_000)),
    "models: invalid UTF-8": (b"/v1/models", response(b'{"data":[{"id":"\xff"}]}')),
    "models: endless": (b"/v1/models", response(b"[" + b"1," * (3 << 20), length=1 << 40)),
    "ready: garbage": (b"/ready", b"\x00\x01\r\n\r\n"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_an_engine_with_malformed_reports_is_not_ready_and_harms_no_other(
    alone, beside, faulty: RawEngine, name: str
) -> None:
    path, report = REPORTS[name]
    faulty.gets[path] = report
    wait_until(lambda: _ready(beside.url) == 1 and _ready(alone.url) == 0)
    assert httpx.post(beside.url + "/v1/completions", json=BODY, timeout=60).status_code == 200
    assert [card["id"] for card in httpx.get(beside.url + "/v1/models").json()["data"]] == ["m"]
    (engine,) = httpx.get(alone.url + "/v1/engines").json()["data"]
    assert engine["error"]
    faulty.gets.clear()
    wait_until(lambda: _ready(beside.url) == 2)


@pytest.mark.parametrize(
    ("path", "report"),
    [
        (b"/version", b"[1]"),
        (b"/version", b"<html>"),
        (b"/load", b"[1]"),
        (b"/load", b'{"running":1e400,"waiting":0}'),
        (b"/load", b'{"running":"many","waiting":0}'),
        (b"/load", b'{"running":1,"waiting":2,"kv_usage":{"a":1}}'),
        (b"/load", b'{"server_load":3}'),
    ],
)
def test_an_engine_without_a_usable_load_is_ready(
    alone, faulty: RawEngine, path: bytes, report: bytes
) -> None:
    """As other OpenAI-compatible servers are."""
    faulty.answer = lambda connection: connection.sendall(response())
    faulty.gets[path] = response(report)
    checks = _checks(alone)
    wait_until(lambda: _checks(alone) > checks + 2 * MODELS_EVERY)
    assert _ready(alone.url) == 1
    (card,) = json.loads(MODELS)["data"]
    assert httpx.get(alone.url + "/v1/models").json()["data"] == [card | {"loaded": True}]
    assert httpx.get(alone.url + "/v1/engines").status_code == 200
    assert httpx.post(alone.url + "/v1/completions", json=BODY, timeout=60).status_code == 200
    faulty.gets.clear()


def _checks(gateway: RunningGateway) -> int:
    (engine,) = gateway.gateway.fleet.engines.values()
    return engine.checks


def _ready(url: str) -> int:
    ready: int = httpx.get(url + "/v1/health").json()["components"]["engines"]["ready"]
    return ready


def _stalling(sent: bytes) -> Callable[[socket.socket], None]:
    def write(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.recv(1)  # until the gateway gives up

    return write


def _in_two(sent: bytes, passed: bytes) -> Callable[[socket.socket], None]:
    """A pause after the bytes that the gateway passes on."""
    end = sent.index(passed) + len(passed)

    def write(connection: socket.socket) -> None:
        connection.sendall(sent[:end] + (b"\r\n" if b"chunked" in sent else b""))
        time.sleep(0.3)
        connection.sendall(sent[end:].removeprefix(b"\r\n"))

    return write
