"""`rondo serve` as its users see it: a process with a port, signals and exit codes."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from support.forked import SERVE, Forked
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import scaled


def serve(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "serve", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(SERVE) as nursery:
        yield nursery


def wait_until_ready(process: subprocess.Popen[str] | Forked, port: int) -> str:
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + scaled(120)
    while True:
        try:
            httpx.get(url + "/ready", timeout=60).raise_for_status()
            return url
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            if isinstance(process, Forked):
                assert process.is_running, process.err.read_text()
            else:
                assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)


@pytest.mark.parametrize(("seconds", "tokens"), [(0.0, 400), (60.0, 100)])
def test_sigterm_under_load_ends_every_request_whole(nursery, model_folder, tmp_path, seconds, tokens):
    port = free_port()
    flags = ["--port", str(port), "--max-num-seqs=8", f"--server.drain_seconds={seconds}"]
    process = Forked(nursery, tmp_path, ["serve", str(model_folder), *flags])
    ended: list[tuple[int, dict]] = []
    try:
        url = wait_until_ready(process, port)
        begun = threading.Barrier(17)

        def ask(client: httpx.Client, i: int) -> None:
            body = {
                "model": model_folder.name,
                "prompt": f"abc {i}",
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            body |= {"n": 8, "stream": i % 2 == 0}
            with client.stream("POST", url + "/v1/completions", json=body) as answer:
                if i % 2:
                    ended.append((answer.status_code, json.loads(answer.read())))
                    return
                lines = [line for line in answer.iter_lines() if line]
                if answer.status_code != 200:
                    ended.append((answer.status_code, json.loads("".join(lines))))
                    return
                assert all(line.startswith("data: ") for line in lines)
                if lines[-1] == "data: [DONE]":
                    del lines[-1]
                ended.append((200, json.loads(lines[-1][6:])))

        def run(i: int) -> None:
            with httpx.Client(timeout=120) as client:
                client.get(url + "/health")
                begun.wait()
                ask(client, i)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        begun.wait()
        while httpx.get(url + "/load").json()["server_load"] < 16 * 8 // 2:
            time.sleep(0.01)
        process.signal(signal.SIGTERM)
        for thread in threads:
            thread.join(scaled(120))
        assert process.wait() == 0
        errors = process.err.read_text()
    finally:
        process.kill()
    assert len(ended) == 16
    for status, body in ended:
        if status == 200 and "choices" in body:
            assert all(choice["finish_reason"] == "length" for choice in body["choices"])
        else:
            assert status in (200, 503)
            assert body["error"]["code"] == "shutting_down"
    cut = [body for _, body in ended if "error" in body]
    assert len(cut) > 8 if seconds == 0 else len(cut) < 16
    assert "Traceback" not in errors


def test_sigterm_lets_requests_finish_and_ends_with_zero(model_folder):
    port = free_port()
    process = serve(
        str(model_folder), "--port", str(port), "--max-num-seqs=4", "--threads=1", "--engine.block_size=8"
    )
    try:
        url = wait_until_ready(process, port)
        body = {
            "model": model_folder.name,
            "prompt": "abc",
            "max_tokens": 300,
            "ignore_eos": True,
            "stream": True,
        }
        events = []
        begun = threading.Event()

        def read():
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line:
                        events.append(line)
                        begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(30)
        process.send_signal(signal.SIGTERM)
        reader.join(60)
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_second_sigterm_ends_at_once(nursery, model_folder, tmp_path):
    port = free_port()
    flags = ["--port", str(port), "--max-num-seqs=1", "--server.drain_seconds=600"]
    process = Forked(nursery, tmp_path, ["serve", str(model_folder), *flags])
    try:
        url = wait_until_ready(process, port)
        body = {"model": model_folder.name, "prompt": "abc", "max_tokens": 400, "ignore_eos": True, "n": 8}
        answers: list[dict] = []

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):
                answers.append(httpx.post(url + "/v1/completions", json=body, timeout=120).json())

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        while httpx.get(url + "/load").json()["server_load"] < 16 * 8 // 2:
            time.sleep(0.01)
        process.signal(signal.SIGTERM)
        # It drains: it takes nothing more, and works on.
        while httpx.post(url + "/v1/completions", json=body, timeout=60).status_code != 503:
            time.sleep(0.01)
        assert httpx.get(url + "/load").json()["server_load"] > 0
        assert process.is_running
        process.signal(signal.SIGTERM)
        code = process.wait()
        for thread in threads:
            thread.join(scaled(30))
        errors = process.err.read_text()
    finally:
        process.kill()
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    assert "cut off" in errors
    assert len(answers) < 16
    for answer in answers:
        assert "choices" in answer or answer["error"]["code"] == "shutting_down"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{model}", "--port", "{taken}"], "is in use"),
        (["/nowhere/at/all"], "nowhere"),
        (["{model}", "--host", "0.0.0.0"], "--api-key KEY"),
        (["{model}", "--host", "::", "--host", "0.0.0.0"], "--allow-public-without-key"),
        (["{model}", "--max-model-len", "100000"], "512"),
        (["{model}", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["{model}", "--no-such-flag"], "no-such-flag"),
        (["{model}", "--engine.blok_size=3"], "block_size"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(nursery, model_folder, tmp_path, arguments, says):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        filled = [a.format(model=model_folder, taken=port) for a in arguments]
        if "--port" not in filled:
            filled += ["--port", "0"]
        process = Forked(nursery, tmp_path, ["serve", *filled])
        code = process.wait()
        errors = process.err.read_text()
    lines = [line for line in errors.splitlines() if line.strip() and not line.endswith(" ...")]
    assert code > 0
    assert len(lines) == 1, errors
    assert lines[0].startswith("error: ")
    assert says in lines[0]


@pytest.mark.long
def test_up_serves_the_demo_model_that_is_there_and_says_where(model_folder, tmp_path):
    from rondo.demo.pipeline import NAME

    (tmp_path / "models").mkdir()
    shutil.copytree(model_folder, tmp_path / "models" / NAME)
    process = subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "up", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RONDO_HOME": str(own_home(tmp_path))},
    )
    try:
        printed: list[str] = []
        while not any("curl" in line for line in printed):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed.append(line)
        url = next(word for line in printed for word in line.split() if word.startswith("http"))
        assert httpx.get(url + "/v1/models", timeout=60).json()["data"][0]["id"] == NAME
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
