"""Many clients and unusual ones: more at once than a process may usually have files open, as many that send nothing,
half-open ones, and ones that do not read."""

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from support.ports import free_port
from support.raw_http import connect, raw_engine, read_all, request, response
from support.served import SOURCES
from support.waiting import scaled, until, wait_until

MANY, WAVE = 2000, 100
TCP_REPAIR = 19
"""Of Linux: a socket that is closed in this mode sends nothing."""


@pytest.fixture(scope="module", autouse=True)
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * MANY
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} open files are needed, and the limit is {hard}: raise it with ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def process(
    descriptors: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Stub, subprocess.Popen[bytes]]]:
    """`rondo gateway` in front of a stub, started with the usual limit of 1,024 open files."""
    port, tmp_path = free_port(), tmp_path_factory.mktemp("process")
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(tmp_path)}
    with served(Stub()) as stub, (tmp_path / "log").open("wb") as log:
        rondo = f"{sys.executable} -m rondo.cli gateway {stub.url} --port={port} --gateway.access_log=false"
        started = subprocess.Popen(
            ["bash", "-c", f"ulimit -S -n 1024; exec {rondo}"], env=env, stdout=log, stderr=log
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: _status(url + "/ready") == 200)
            yield url, stub, started
        finally:
            started.terminate()
            started.wait(scaled(60))


def _status(url: str) -> int:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=60).status_code
    return 0


def test_very_many_clients_at_once_are_answered(process) -> None:
    url, stub, _ = process
    stub.mode, before = "stall", len(stub.requests)
    host, port = url.removeprefix("http://").split(":")

    async def one(number: int) -> bytes:
        body = json.dumps({"model": "m", "user": f"{number}"}).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(body, b"X-Request-Id: n%d" % number, b"Connection: close"))
        answer = await reader.read()
        writer.close()
        return answer

    async def all_of_them() -> list[bytes]:
        tasks: list[asyncio.Task[bytes]] = []
        for begin in range(
            0, MANY, WAVE
        ):  # a slow machine accepts not all connections within their time-outs
            tasks += [asyncio.create_task(one(number)) for number in range(begin, begin + WAVE)]
            await until(lambda begun=begin + WAVE: len(stub.requests) == before + begun)
        stub.released.set()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(asyncio.wait_for(all_of_them(), scaled(120)))
    for number, answer in enumerate(answers):
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"x-request-id: n%d\r\n" % number in answer
    stub.mode = "ok"
    stub.released.clear()
    assert _post(url) == 200


def test_very_many_clients_that_send_nothing_hold_up_nobody(process) -> None:
    url, _, started = process
    with ExitStack() as stack:
        for number in range(MANY):
            connection = stack.enter_context(closing(connect(url)))
            if number % 2:
                connection.sendall(b"POST /v1/completions HT")
        for _ in range(10):
            assert _post(url) == 200
        used = len(os.listdir(f"/proc/{started.pid}/fd"))
        assert used > MANY // 2  # they are open, and served nevertheless
    wait_until(lambda: len(os.listdir(f"/proc/{started.pid}/fd")) < 200)
    assert _post(url) == 200


def test_an_idle_client_leaves_room_where_all_places_are_taken(tmp_path: Path) -> None:
    with (
        served(Stub()) as stub,
        gateway_of([stub.url], tmp_path, max_connections=20) as gateway,
        ExitStack() as stack,
    ):
        for _ in range(100):
            stack.enter_context(closing(connect(gateway.url)))
        assert _post(gateway.url) == 200


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningGateway, Stub]]:
    monkeypatch.setattr("rondo.web.sockets.half_closed.PROBE_SECONDS", 0.05)
    monkeypatch.setattr("rondo.web.run.KEEPALIVE", (1, 1, 1))
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        yield gateway, stub


@pytest.mark.parametrize("mode", ["stall", "endless"])
def test_a_client_that_vanished_is_noticed(running, mode: str) -> None:
    """Its machine lost power: no end of the connection arrives."""
    gateway, stub = running
    stub.mode = mode
    connection = connect(gateway.url)
    body = {"model": "m", "stream": mode == "endless"}
    connection.sendall(request(json.dumps(body).encode()))
    wait_until(lambda: stub.requests)
    wait_until(lambda: gateway.gateway.forward.active == 1)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        connection.close()
        pytest.skip("vanishing without an end needs CAP_NET_ADMIN: run as root")
    connection.close()
    wait_until(lambda: gateway.gateway.forward.active == 0)
    stub.released.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_answer(running, stream: bool) -> None:
    gateway, _ = running
    with closing(connect(gateway.url)) as connection:
        connection.sendall(request(json.dumps({"model": "m", "stream": stream}).encode()))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert b"HTTP/1.1 200 OK" in answer
    assert (b"[DONE]" if stream else b'"choices"') in answer


def test_a_client_that_leaves_within_its_body_reaches_no_engine(running) -> None:
    gateway, stub = running
    with closing(connect(gateway.url)) as connection:
        connection.sendall(request()[:-3])
    wait_until(lambda: gateway.gateway.forward.active == 0)
    assert not stub.requests


def test_a_body_that_stops_coming_is_a_408(tmp_path: Path) -> None:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path, body_seconds=0.2) as gateway:
        for path in (b"/v1/completions", b"/v1/keys"):
            with closing(connect(gateway.url)) as connection:
                connection.sendall(request(path=path)[:-3])
                assert b"body_timeout" in read_all(connection)
        assert not stub.requests


def test_a_slow_reader_stops_its_engine_not_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine could send 2 GB; it is held back, and the connection closed after a while."""
    monkeypatch.setattr("rondo.web.sockets.connections.STALLED_SECONDS", 3.0)
    sent: list[int] = []
    event = b"data: " + b"x" * 8192 + b"\n\n"
    part = b"%x\r\n%s\r\n" % (len(event) * 8, event * 8)

    def flood(connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(30_000):
            connection.sendall(part)
            sent.append(len(part))

    with raw_engine(flood) as engine, gateway_of([engine.url], tmp_path) as gateway:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = gateway.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        with closing(connection):
            connection.sendall(request(b'{"model":"m","stream":true}'))
            wait_until(lambda: sum(sent) > 100_000)
            engine.answer = lambda other: other.sendall(response())
            assert _post(gateway.url) == 200  # others are served
            wait_until(lambda: gateway.gateway.forward.active == 0)
            assert sum(sent) < 64 << 20


def test_memory_stays_flat_over_slow_and_broken_clients(process) -> None:
    url, _, started = process

    def memory() -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{started.pid}/status").read_text())
        assert found
        return int(found[1]) << 10

    def round_of_clients() -> None:
        for number in range(300):
            with closing(connect(url)) as connection:
                body = json.dumps({"model": "m", "stream": True, "user": "x" * 20_000}).encode()
                whole = request(body)
                connection.sendall(whole if number % 2 else whole[: 100 + number * 10])
                if number % 6 == 3:  # a complete request
                    connection.recv(100)

    round_of_clients()
    before = memory()
    for _ in range(3):
        round_of_clients()
    time.sleep(0.5)
    assert memory() - before < 24 << 20
    assert _post(url) == 200


def _post(url: str) -> int:
    return httpx.post(url + "/v1/completions", json={"model": "m"}, timeout=scaled(60)).status_code
