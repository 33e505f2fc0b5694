"""`rondo up` as a process, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai

from support.forks import python
from support.ports import free_port
from support.served import SOURCES
from support.waiting import scaled, wait_until


@dataclass
class Up:
    url: str
    home: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    def rondo(self, *arguments: str, code: int = 0) -> str:
        command = [str(python()), "-m", "rondo.cli", *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=scaled(60))
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def parts(self) -> dict[str, dict[str, object]]:
        return {part["name"]: part for part in json.loads(self.rondo("ps", "--json"))["parts"]}

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0)


@contextmanager
def running_up(home: Path, *arguments: str, program: Path | str = sys.executable) -> Iterator[Up]:
    """Waits until the pinned engines are ready. Unless the test kills the process, it must end well. The program may be
    `support.forks.python`, whose parts start sooner."""
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(home)}
    first, port, out = free_port(), free_port(), home / "out"
    command = [
        *(str(program), "-m", "rondo.cli", "up", *arguments, f"--port={port}"),
        *(f"--up.first_port={first}", "--gateway.poll_seconds=0.1"),
    ]
    with out.open("wb") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=file)
    running = Up(f"http://127.0.0.1:{port}", home, env, process)
    try:
        wait_until(lambda: b"see `rondo ps`" in out.read_bytes() or process.poll() is not None, 240)
        assert process.poll() is None, out.read_text()
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(scaled(120)) == 0
