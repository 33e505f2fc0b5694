"""kill -9 of the engine, the gateway and the supervisor of a real `rondo up`, at each stage of a request: what the
client sees, and the time until the next request is answered."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.forks import inner, python
from support.home import own_home
from support.ports import free_port
from support.processes import alive
from support.raw_http import connect, read_all, request
from support.served import SOURCES, write_model
from support.tiny import tiny_model
from support.waiting import scaled, wait_until

pytestmark = pytest.mark.timeout(1200)
PROMPT = "abc " * 1500
LONG = {"model": "toy", "max_tokens": 7000, "ignore_eos": True}
REPORT = os.environ.get("RONDO_RECOVERY_REPORT")
"""File to which the measured times are appended."""


class Up:
    def __init__(self, folder: Path, *flags: str) -> None:
        self.home = own_home(folder / "home")
        if not (self.home / "models" / "toy").exists():
            write_model(self.home / "models" / "toy", tiny_model(max_position_embeddings=32_768))
        self.out = folder / "out"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(str(python()), "-m", "rondo.cli", "up", "toy", f"--port={self.port}"),
            *(f"--up.first_port={free_port()}", "--gateway.poll_seconds=0.2", *flags),
            "--engine.max_step_tokens=64",  # so that a prefill takes many steps
        ]
        self.start()

    def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(self.home)}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(self._command, env=env, stdout=out, stderr=out)
        wait_until(self.answers, 300)

    def answers(self) -> bool:
        return (
            self.get("/ready") == 200 and self.post({"model": "toy", "prompt": "a", "max_tokens": 1}) == 200
        )

    def get(self, path: str) -> int:
        try:
            return httpx.get(self.url + path, timeout=60).status_code
        except httpx.TransportError:
            return 0

    def post(self, body: dict[str, Any]) -> int:
        try:
            return httpx.post(self.url + "/v1/completions", json=body, timeout=scaled(60)).status_code
        except httpx.TransportError:
            return 0

    def parts(self) -> dict[str, dict[str, Any]]:
        state = json.loads((self.home / "supervisor.json").read_text())
        return {part["name"]: part for part in state["parts"]}

    def pid(self, part: str) -> int:
        pid = self.parts()[part]["pid"]
        assert isinstance(pid, int)
        return inner(pid)

    def engine(self) -> str:
        url: str = self.parts()["engine-1"]["url"]
        return url

    def load(self) -> int:
        """Requests that the engine computes."""
        found: int = httpx.get(self.engine() + "/load", timeout=60).json()["running"]
        return found

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(scaled(120)) == 0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("killed"))
    yield running
    running.end()


Begun = Callable[[Up], socket.socket]


def connecting(up: Up) -> socket.socket:
    return connect(up.url)


def half_of_the_head(up: Up) -> socket.socket:
    connection = connect(up.url)
    connection.sendall(_request(up, LONG)[:40])
    return connection


def half_of_the_body(up: Up) -> socket.socket:
    connection = connect(up.url)
    connection.sendall(_request(up, LONG | {"prompt": PROMPT})[:-200])
    return connection


def prefill(up: Up) -> socket.socket:
    return _running(up, LONG | {"prompt": PROMPT, "stream": True, "max_tokens": 3000})


def within_json(up: Up) -> socket.socket:
    return _running(up, LONG | {"prompt": "a"})


def _running(up: Up, body: dict[str, Any]) -> socket.socket:
    """The connection of a request that the engine computes."""
    before, connection = up.load(), connect(up.url)
    connection.sendall(_request(up, body))
    wait_until(lambda: up.load() > before)
    return connection


def within_a_stream(up: Up) -> socket.socket:
    connection = connect(up.url)
    connection.sendall(_request(up, LONG | {"prompt": "a", "stream": True}))
    received = b""
    while received.count(b"data: ") < 3:
        received += connection.recv(65536)
    return connection


def between_two_requests(up: Up) -> socket.socket:
    connection = connect(up.url)
    connection.sendall(_request(up, {"model": "toy", "prompt": "a", "max_tokens": 1}))
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    return connection


STAGES: dict[str, Begun] = {
    "between two requests": between_two_requests,
    "connecting": connecting,
    "half of the head sent": half_of_the_head,
    "half of the body sent": half_of_the_body,
    "JSON response computed": within_json,
    "within a stream": within_a_stream,
    "prefill": prefill,
}
"""In an order in which the earlier ones are still at their stage when the later ones are."""


@contextmanager
def at_each_stage(up: Up) -> Iterator[dict[str, socket.socket]]:
    """A connection at each stage of a request, by the stage's name."""
    with ExitStack() as stack:
        yield {stage: stack.enter_context(closing(begin(up))) for stage, begin in STAGES.items()}


def test_an_engine_killed_at_each_stage(up: Up) -> None:
    """The gateway stays, and says what happened."""
    wait_until(up.answers, 240)
    gateway, pid = up.pid("gateway"), up.pid("engine-1")
    rest = {
        "connecting": _request(up, {"model": "toy", "prompt": "a", "max_tokens": 1}, last=True),
        "between two requests": _request(up, {"model": "toy", "prompt": "a", "max_tokens": 1}, last=True),
        "half of the head sent": _request(up, LONG, last=True)[40:],
        "half of the body sent": _request(up, LONG | {"prompt": PROMPT})[-200:],
    }
    with at_each_stage(up) as connections:
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: not alive(pid))
        for stage, left in rest.items():
            connections[stage].sendall(left)
        answers = {stage: read_one(connection) for stage, connection in connections.items()}
    for stage, answer in answers.items():
        if stage == "within a stream" or (stage == "prefill" and answer.startswith(b"HTTP/1.1 200 ")):
            assert b'"engine_failed"' in answer, stage
        else:
            assert answer.startswith(b"HTTP/1.1 503 "), stage
            assert re.search(rb'"code":"(engine_unavailable|no_engine_ready|engines_starting)"', answer), (
                stage
            )
    _recovers(up, "engine", killed)
    assert up.pid("gateway") == gateway
    assert up.pid("engine-1") != pid


def test_a_gateway_killed_at_each_stage(up: Up) -> None:
    """The connections end, the engine stops computing, and the gateway is back without a start of the engine."""
    wait_until(up.answers, 240)
    gateway, pid = up.pid("gateway"), up.pid("engine-1")
    with at_each_stage(up) as connections:
        os.kill(gateway, signal.SIGKILL)
        killed = time.monotonic()
        for connection in connections.values():
            assert b"[DONE]" not in read_all(connection)
    wait_until(lambda: up.load() == 0)
    _recovers(up, "gateway", killed)
    assert up.pid("engine-1") == pid
    assert up.pid("gateway") != gateway


def test_both_killed_at_once_come_back(up: Up) -> None:
    wait_until(up.answers, 240)
    for part in ("gateway", "engine-1"):
        os.kill(up.pid(part), signal.SIGKILL)
    _recovers(up, "gateway and engine", time.monotonic())


def test_a_killed_supervisor_takes_its_parts_along_and_a_new_start_serves(tmp_path: Path) -> None:
    """Also within a stream; the port and the store are free at once."""
    up = Up(tmp_path)
    pids = [up.pid(part) for part in ("gateway", "engine-1")]
    with closing(within_a_stream(up)) as connection:
        os.kill(inner(up.process.pid), signal.SIGKILL)
        up.process.wait()
        killed = time.monotonic()
        assert b"[DONE]" not in read_all(connection)
    wait_until(lambda: not any(map(alive, pids)))
    up.start()
    _note("supervisor", time.monotonic() - killed)
    assert [part for part in up.parts() if up.parts()[part]["restarts"]] == []
    up.end()


def test_another_engine_answers_in_place_of_a_killed_one(tmp_path: Path) -> None:
    """With two engines a request that has no byte yet is answered, whichever is killed."""
    up = Up(tmp_path, "--engines=2")
    try:
        wait_until(lambda: all(each["state"] == "ready" for each in _engines(up)))
        for part in ("engine-1", "engine-2"):
            wait_until(lambda: len([each for each in _engines(up) if each["state"] == "ready"]) == 2, 240)
            os.kill(up.pid(part), signal.SIGKILL)
            for _ in range(6):
                assert up.post({"model": "toy", "prompt": "a", "max_tokens": 1}) == 200
    finally:
        up.end()


def _engines(up: Up) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(up.url + "/v1/engines", timeout=60).json()["data"]
    return found


def _request(up: Up, body: dict[str, Any], last: bool = False) -> bytes:
    return request(json.dumps(body).encode(), *([b"Connection: close"] if last else []))


def read_one(connection: socket.socket) -> bytes:
    """A response whose connection may stay open."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
            if b'"code"' in received or b"[DONE]" in received:
                break
    return received


def _recovers(up: Up, killed_part: str, killed: float) -> None:
    wait_until(up.answers, 300)
    _note(killed_part, time.monotonic() - killed)


def _note(killed_part: str, seconds: float) -> None:
    if REPORT:
        with open(REPORT, "a") as file:
            file.write(f"{seconds:6.1f} s  {killed_part}\n")
