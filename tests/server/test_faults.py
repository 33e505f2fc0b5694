"""Clients at fault: each gets its answer, what it had is given back, and the next one is served as ever."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import Running, start
from support.engines import slowly
from support.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
LONG = {"model": "tiny", "prompt": "abc", "max_tokens": 400, "ignore_eos": True}
LIMIT = 20_000


@pytest.fixture(scope="module")
def served(model_folder) -> Iterator[Running]:
    config = ServerConfig(port=0, served_model_name="tiny", max_body_bytes=LIMIT)
    engine = EngineConfig(max_num_seqs=2, block_size=4, max_step_tokens=16)
    for running in start(model_folder, engine, config):
        runner = running.engine.core.runner
        runner.run = slowly(runner.run, 0.01)
        yield running


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def afterwards(served: Running, client: httpx.Client) -> Iterator[None]:
    """Whatever a test did: nothing is left of it, and others are served."""
    yield
    core = served.engine.core
    asyncio.run(until(lambda: not core.has_work and core.pool.used == 0))
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
    assert client.post(COMPLETIONS, json=body).status_code == 200


def connect(served: Running) -> socket.socket:
    address = urlsplit(served.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    return connection


def request(path: str, body: bytes = b"", *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *more]
    if not any(line.startswith(("Content-Length", "Transfer-Encoding")) for line in more):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def whole(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return error


MESSAGES = b'{"model":"tiny","messages":[{"role":"user","content":%s}]}'
BODIES = {
    "nothing": b"",
    "no JSON": b"{nope",
    "cut off": b'{"model": "tiny", "prompt": "a',
    "two of them": b"{}{}",
    "not an object": b"[1]",
    "null": b"null",
    "bytes that are no UTF-8": MESSAGES % b'"\xff\xfe"',
    "a lone surrogate": MESSAGES % rb'"\ud800"',
    "a lone surrogate as a name": rb'{"model":"tiny","\ud800":1}',
    "NaN": b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    "infinity": b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    "a number too long to read": b'{"model":"tiny","messages":[],"seed":' + b"9" * 10_000 + b"}",
    "deep arrays": b"[" * 9_000,
    "deep objects": b'{"a":' * 3_000,
    "a deep value": MESSAGES % (b"[" * 5_000 + b"]" * 5_000),
    "deep where anything may stand": MESSAGES[:-1] % b'"a"'
    + b',"chat_template_kwargs":'
    + b'{"a":' * 2_000
    + b"1"
    + b"}" * 2_001,
    "deep where a template looks": b'{"model":"tiny","messages":[{"role":"user","content":"a","x":'
    + b"[" * 3_000
    + b"]" * 3_000
    + b"}]}",
}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, "/v1/embeddings", "/tokenize"])
def test_a_body_that_cannot_be_read_is_a_400(client: httpx.Client, route: str) -> None:
    for name, body in BODIES.items():
        answer = client.post(route, content=body, headers=JSON)
        assert answer.status_code == 400, (name, answer.text)
        assert error_of(answer)["type"] == "invalid_request_error"
        assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "given",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"],
)
def test_a_type_that_is_not_json_is_a_415(client: httpx.Client, given: str | None) -> None:
    """A web page could send these to a server on its reader's machine."""
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 1}).encode()
    headers = {} if given is None else {"Content-Type": given}
    answer = client.post(COMPLETIONS, content=body, headers=headers)
    assert (answer.status_code, error_of(answer)["code"]) == (415, "unsupported_media_type")
    for fine in ("application/json", "Application/JSON; charset=utf-8"):
        headers = {"Content-Type": fine}
        assert client.post(COMPLETIONS, content=body, headers=headers).status_code == 200


def test_a_body_that_says_it_is_huge_is_refused_before_it_comes(served: Running) -> None:
    with closing(connect(served)) as connection:
        connection.sendall(request(COMPLETIONS, b"", f"Content-Length: {10**15}"))
        answer = whole(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer


def test_a_body_that_turns_out_huge_is_refused_on_the_way(client: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(4):
            yield b" " * (LIMIT // 3)

    answer = client.post(COMPLETIONS, content=parts(), headers=JSON)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "sent",
    {
        "no HTTP": b"hello there\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        "a method that nobody knows": b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "a flood of headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 40_000,
        "one endless header": b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000,
        "an endless address": b"GET /" + b"a" * 200_000,
        "endless trailers": request(COMPLETIONS, b"2\r\n{}\r\n0\r\n", "Transfer-Encoding: chunked")
        + b"X-A: b\r\n" * 80_000,
        "two lengths": request(COMPLETIONS, b"{}", "Content-Length: 1", "Content-Length: 2"),
        "a length that is none": request(COMPLETIONS, b"{}", "Content-Length: -5"),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_request_is_a_400_and_the_end(served: Running, sent: tuple[str, bytes]) -> None:
    with closing(connect(served)) as connection:
        try:
            connection.sendall(sent[1])
            answer = whole(connection)
        except (ConnectionResetError, BrokenPipeError):
            return  # it hung up before it had read all of it
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Traceback" not in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/models/nothing", 404),
        ("GET", "/v1/models/%ff%00", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/health", 405),
        ("OPTIONS", "/v1/models", 405),
        ("PROPFIND", "/health", 405),
    ],
)
def test_unknown_routes_and_methods_have_openais_shape(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path, follow_redirects=True)
    assert answer.status_code == status
    assert error_of(answer)["type"] == "invalid_request_error"
    if status == 405:
        assert answer.headers["allow"]


SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}]},
    COMPLETIONS: {"prompt": "a"},
    "/v1/embeddings": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [70]},
}


@pytest.mark.parametrize("route", SMALLEST)
def test_an_unknown_model_is_a_404(client: httpx.Client, route: str) -> None:
    for name in ("gpt-9", "", "../../etc", "a\x00b", "é" * 100):
        answer = client.post(route, json=SMALLEST[route] | {"model": name})
        if name == "" and "v1/c" not in route:
            continue  # there it is the default
        assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")


def test_requests_in_a_row_are_answered_in_their_order(served: Running) -> None:
    """Without waiting for the answers."""
    bodies = [json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": n}).encode() for n in (9, 1, 4)]
    *first, last = [request(COMPLETIONS, body) for body in bodies]
    closes = last.replace(b"Host: x", b"Host: x\r\nConnection: close")
    with closing(connect(served)) as connection:
        connection.sendall(b"".join([*first, closes]))
        answers = whole(connection).split(b"HTTP/1.1 200 OK")[1:]
    counts = [
        json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] for answer in answers
    ]
    assert len(counts) == 3
    assert counts[1] == 1


def leaving(served: Running, body: dict[str, Any], when: Callable[[], object]) -> None:
    """Asks, and hangs up as soon as `when` says so."""
    with closing(connect(served)) as connection:
        connection.sendall(request(COMPLETIONS, json.dumps(LONG | body).encode()))
        asyncio.run(until(when))


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_hangs_up_while_its_prompt_is_computed(served: Running, stream: bool) -> None:
    core = served.engine.core
    prompt = "abc " * 120

    def halfway() -> bool:
        return any(0 < r.computed < r.prompt_length - 32 for r in list(core.scheduler.running))

    before = served.engine.metrics.finished["abort"]
    leaving(served, {"prompt": prompt, "stream": stream}, halfway)
    asyncio.run(until(lambda: served.engine.metrics.finished["abort"] > before))


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_hangs_up_while_it_waits(served: Running, stream: bool) -> None:
    core = served.engine.core
    with closing(connect(served)) as busy:
        busy.sendall(request(COMPLETIONS, json.dumps(LONG | {"n": 2}).encode()))
        asyncio.run(until(lambda: core.scheduler.num_running == 2))
        leaving(served, {"stream": stream}, lambda: core.scheduler.num_waiting == 1)
        asyncio.run(until(lambda: core.scheduler.num_waiting == 0))
        assert core.scheduler.num_running == 2


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_hangs_up_in_the_middle_of_its_answer(served: Running, stream: bool) -> None:
    core = served.engine.core
    leaving(served, {"stream": stream}, lambda: any(r.generated > 3 for r in list(core.scheduler.running)))


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_closes_its_half_has_left(served: Running, stream: bool) -> None:
    """As with most servers: who still wants the answer keeps the connection open."""
    core = served.engine.core
    with closing(connect(served)) as connection:
        connection.sendall(request(COMPLETIONS, json.dumps(LONG | {"stream": stream}).encode()))
        asyncio.run(until(lambda: core.scheduler.num_running))
        connection.shutdown(socket.SHUT_WR)
        asyncio.run(until(lambda: not core.has_work))


def test_one_that_reads_nothing_holds_up_nobody(served: Running) -> None:
    with closing(connect(served)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = LONG | {"stream": True, "logprobs": 20, "return_token_ids": True}
        connection.sendall(request(COMPLETIONS, json.dumps(body).encode()))
        asyncio.run(until(lambda: served.engine.core.scheduler.num_running))
        for _ in range(3):
            answer = httpx.post(
                served.url + COMPLETIONS, json={"model": "tiny", "prompt": "abc", "max_tokens": 2}
            )
            assert answer.status_code == 200


def test_many_connections_that_say_nothing_hold_up_nobody(served: Running, client: httpx.Client) -> None:
    connections = [connect(served) for _ in range(200)]
    try:
        for connection in connections[::2]:
            connection.sendall(b"POST /v1/completions HT")
        assert client.get("/health").status_code == 200
    finally:
        for connection in connections:
            connection.close()
