"""`rondo serve` as its users see it: a process with a port, signals and exit codes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest


def serve(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "serve", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_sigterm_lets_requests_finish_and_ends_with_zero(model_folder):
    port = free_port()
    process = serve(
        str(model_folder), "--port", str(port), "--max-num-seqs=4", "--threads=1", "--engine.block_size=8"
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(url + "/ready", timeout=60).raise_for_status()
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
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
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{model}", "--port", "{taken}"], "is in use"),
        (["/nowhere/at/all"], "nowhere"),
        (["{model}", "--max-model-len", "100000"], "512"),
        (["{model}", "--max-num-seqs", "0"], "--max-num-seqs"),
        (["{model}", "--no-such-flag"], "no-such-flag"),
        (["{model}", "--engine.blok_size=3"], "block_size"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(model_folder, arguments, says):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        filled = [a.format(model=model_folder, taken=port) for a in arguments]
        if "--port" not in filled:
            filled += ["--port", "0"]
        process = serve(*filled)
        _, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line.strip()]
    assert process.returncode not in (0, None)
    assert len(lines) == 1, errors
    assert lines[0].startswith("error: ")
    assert says in lines[0]


def test_up_serves_the_demo_model_that_is_there_and_says_where(model_folder, tmp_path):
    from rondo.rl.demo import NAME

    (tmp_path / "models").mkdir()
    shutil.copytree(model_folder, tmp_path / "models" / NAME)
    process = subprocess.Popen(
        [sys.executable, "-m", "rondo.cli", "up", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RONDO_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    try:
        printed: list[str] = []
        while not any("curl" in line for line in printed):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed.append(line)
        url = next(word for line in printed for word in line.split() if word.startswith("http"))
        assert httpx.get(url + "/models", timeout=60).json()["data"][0]["id"] == NAME
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
