"""Half-closed clients, clients that are gone, and HTTP/1.0, on raw sockets and with curl."""

import json
import shutil
import socket
import subprocess
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from server.running import begun
from support.waiting import wait_until

SHORT = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "ignore_eos": True}
LONG = {"model": "tiny", "prompt": "abc", "max_tokens": 500, "ignore_eos": True}


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def request(body: dict, version: str = "1.1", path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_answer(running, version, stream):
    with closing(connect(running.url)) as connection:
        connection.sendall(request(SHORT | {"stream": stream}, version))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert (
        answer.endswith(b"data: [DONE]\n\n" if version == "1.0" else b"0\r\n\r\n")
        if stream
        else b'"usage"' in answer
    )


def test_a_half_closed_client_gets_all_pipelined_answers(running):
    with closing(connect(running.url)) as connection:
        connection.sendall(request(SHORT) * 3)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).count(b"HTTP/1.1 200 ") == 3


def test_a_half_closed_client_that_waits_is_probed(running, monkeypatch):
    monkeypatch.setattr("rondo.web.sockets.half_closed.PROBE_SECONDS", 0.01)
    body = LONG | {"n": 8}
    with closing(connect(running.url)) as connection:
        connection.sendall(request(body))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    probes, _, rest = answer.partition(b"HTTP/1.1 200 ")
    assert probes == b"HTTP/1.1 100 Continue\r\n\r\n" * 2
    assert json.loads(rest.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] > 1000


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_noticed(running, stream, monkeypatch):
    monkeypatch.setattr("rondo.web.sockets.half_closed.PROBE_SECONDS", 0.02)
    core = running.engine.core
    connection = connect(running.url)
    connection.sendall(request(LONG | {"n": 8, "stream": stream}))
    begun(running)
    connection.close()
    wait_until(lambda: not core.has_work)
    assert core.pool.used == 0


def test_a_client_that_ends_within_its_request_is_dropped(running):
    with closing(connect(running.url)) as connection:
        connection.sendall(request(SHORT)[:-5])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_over_http_1_0_is_not_chunked(running, stream):
    with closing(connect(running.url)) as connection:
        connection.sendall(request(SHORT | {"stream": stream}, "1.0"))
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if stream:
        assert b"content-length" not in head.lower()
        assert body.startswith(b"data: {")
        assert body.endswith(b"\n\ndata: [DONE]\n\n")
        assert all(line.startswith(b"data: ") for line in body.split(b"\n") if line)
    else:
        assert b"content-length: %d\r\n" % len(body) in head.lower() + b"\r\n"
        json.loads(body)


def test_an_error_over_http_1_0_is_whole(running):
    with closing(connect(running.url)) as connection:
        connection.sendall(request(SHORT | {"n": 0}, "1.0"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == "n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt-get install curl")
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl_reads_streams_of_either_version(running, version):
    line = ["curl", "-sS", version, "--max-time", "60", running.url + "/v1/completions"]
    line += ["-H", "Content-Type: application/json", "-d", json.dumps(SHORT | {"stream": True})]
    done = subprocess.run(line, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("data: [DONE]\n\n")
    assert done.stdout.count('"finish_reason":"length"') == 1
