"""Clients that hold connections open: they are closed, and others are served."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rondo.server.config import ServerConfig
from rondo.web.run import bind, make_server, run_server, url_of
from rondo.web.sockets.connections import Connections
from rondo.web.spare_log import MOST, Sparing

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def app(scope, receive, send) -> None:
    """Answers at once, and without reading a body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def serving(**settings: float) -> Iterator[str]:
    config = ServerConfig(port=0, **settings)
    listener = bind("127.0.0.1", 0)
    server = make_server(app, config)
    started = threading.Event()
    thread = threading.Thread(target=run_server, args=(server, listener, started.set), daemon=True)
    thread.start()
    assert started.wait(60)
    yield url_of(listener)
    server.should_exit = True
    thread.join(60)
    listener.close()


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def whole(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection; nothing where it resets it."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def ask(url: str, request: bytes = HEALTH) -> bytes:
    with closing(connect(url)) as connection:
        connection.sendall(request)
        return whole(connection)


def test_a_head_that_does_not_come_is_a_408() -> None:
    for url in serving(header_seconds=0.3):
        with closing(connect(url)) as slow, closing(connect(url)) as silent, closing(connect(url)) as again:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ")
            again.sendall(HEALTH.replace(b"Connection: close\r\n", b"") + b"GET /hea")
            answer = whole(slow)
            assert answer.startswith(b"HTTP/1.1 408 ")
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "header_timeout"
            assert "server.header_seconds" in error["message"]
            assert whole(silent) == b""
            assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", whole(again))] == [200, 408]


def test_a_head_that_comes_byte_by_byte_is_a_408() -> None:
    for url in serving(header_seconds=0.3):
        with closing(connect(url)) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nX-A: ")
            slow.settimeout(0.05)
            answer = b""
            for _ in range(1000):
                try:
                    slow.sendall(b"a")
                    answer = slow.recv(4096)
                    break
                except TimeoutError:
                    continue
            assert answer.startswith(b"HTTP/1.1 408 ")


def test_an_unread_body_that_trickles_in_does_not_hold_its_connection() -> None:
    for url in serving(header_seconds=0.3):
        with closing(connect(url)) as slow:
            slow.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            ended = False
            for _ in range(1000):
                try:
                    slow.sendall(b"a")
                except ConnectionError:
                    ended = True
                    break
                time.sleep(0.02)
            assert ended


def test_requests_on_one_connection_have_no_deadline_in_common() -> None:
    for url in serving(header_seconds=1.0):
        with closing(connect(url)) as connection:
            for _ in range(8):
                connection.sendall(HEALTH.replace(b"Connection: close\r\n", b""))
                assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
                time.sleep(0.3)


def test_idle_connections_give_way_to_new_ones() -> None:
    for url in serving(max_connections=20), serving(max_connections=20, header_seconds=0.5):
        for each in url:
            with ExitStack() as stack:
                for number in range(60):
                    connection = stack.enter_context(closing(connect(each)))
                    if number % 2:
                        connection.sendall(b"GET /health HT")
                for _ in range(3):
                    assert ask(each).startswith(b"HTTP/1.1 200 ")


def test_connections_of_one_address_can_be_limited() -> None:
    for url in serving(max_connections_per_address=3):
        with ExitStack() as stack:
            held = [stack.enter_context(closing(connect(url))) for _ in range(3)]
            for connection in held:
                connection.sendall(HEALTH.replace(b"Connection: close\r\n", b""))
                connection.recv(4096)
            answer = ask(url, b"")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"server.max_connections_per_address" in answer
        for _ in range(1000):
            if ask(url).startswith(b"HTTP/1.1 200 "):
                break
            time.sleep(0.01)
        else:
            raise AssertionError("closed connections still count")


SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
sys.path.insert(0, {tests!r})
from rondo.base.telemetry.log import setup
setup("human", "info", sys.stderr)
from rondo.server.config import ServerConfig
from rondo.web.run import bind, make_server, run_server, url_of
from server.test_connections import app
listener = bind("127.0.0.1", 0)
run_server(make_server(app, ServerConfig(port=0)), listener, lambda: print(url_of(listener), flush=True))
"""


def test_few_file_descriptors_leave_the_server_reachable_and_its_log_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = SERVER.format(tests=str(Path(__file__).parents[1]))
    with log.open("w") as file, ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file, text=True
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, log.read_text()
            for _ in range(300):
                stack.enter_context(closing(connect(url)))
            for _ in range(5):
                assert ask(url).startswith(b"HTTP/1.1 200 ")
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()
    assert len(log.read_text().splitlines()) < 100


def test_the_number_of_connections_leaves_descriptors_for_other_files() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 200, hard))
    try:
        assert 8 <= Connections(None, None, 10).most <= 200
        assert Connections(10, None, 10).most == 10
        assert Connections(1000, None, 10).most <= 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_same_line_is_logged_a_few_times() -> None:
    sparing = Sparing()
    record = logging.makeLogRecord({"msg": "Invalid HTTP request received."})
    assert [sparing.filter(record) for _ in range(100)] == [True] * MOST + [False] * (100 - MOST)
    assert sparing.filter(logging.makeLogRecord({"msg": "another"}))


@pytest.mark.parametrize("later", [11.0, 100.0])
def test_lines_that_were_left_out_are_counted(monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    sparing, begun = Sparing(), time.monotonic()
    for _ in range(100):
        sparing.filter(logging.makeLogRecord({"msg": "again"}))
    monkeypatch.setattr(time, "monotonic", lambda: begun + later)
    record = logging.makeLogRecord({"msg": "again"})
    assert sparing.filter(record)
    assert record.getMessage() == f"again ({100 - MOST} more of these were left out)"
