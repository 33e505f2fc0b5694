"""Gateways under test as processes, ours and the peers', in front of one stub, and the load generator."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import peers
from common import free_port

HERE = Path(__file__).parent
START_SECONDS = 600
TICKS = os.sysconf("SC_CLK_TCK")
LITELLM_KEY = "sk-bench"


@dataclass(frozen=True)
class Command:
    line: list[object]
    environment: dict[str, str]
    key: Callable[[], str] = str
    """API key of the gateway, once it runs."""


def rondo(upstream: str, port: int, folder: Path) -> Command:
    """With API keys, as a team runs it."""
    line = [
        sys.executable,
        "-m",
        "rondo.cli",
        "gateway",
        upstream,
        f"--port={port}",
        "--gateway.keys=required",
    ]
    key = folder / "admin-key"
    return Command(line, os.environ | {"RONDO_HOME": str(folder)}, lambda: key.read_text().strip())


def vllm_router(upstream: str, port: int, folder: Path) -> Command:
    program = peers.python_of("vllm_router").with_name("vllm-router")
    line = [program, "--worker-urls", upstream, "--port", port, "--prometheus-port", free_port()]
    return Command(line, peers.environment({}))


def smg(upstream: str, port: int, folder: Path) -> Command:
    program = peers.python_of("smg").with_name("smg")
    line = [program, "launch", "--worker-urls", upstream, "--port", port, "--prometheus-port", free_port()]
    return Command(line, peers.environment({}))


def litellm(upstream: str, port: int, folder: Path) -> Command:
    """With a key and one process, and without a database."""
    program = peers.python_of("litellm_proxy").with_name("litellm")
    parameters = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "m", "litellm_params": parameters}],
        "general_settings": {"master_key": LITELLM_KEY},
    }
    file = folder / "litellm.json"  # JSON is YAML
    file.write_text(json.dumps(config))
    line = [program, "--config", file, "--host", "127.0.0.1", "--port", port, "--num_workers", 1]
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    return Command(line, peers.environment(local), lambda: LITELLM_KEY)


SIDES = {"rondo": rondo, "vllm-router": vllm_router, "smg": smg, "litellm": litellm}


class Server(peers.Group):
    """A gateway and its child processes, with their CPU time and memory."""

    def __init__(self, name: str, command: Command, port: int) -> None:
        super().__init__(name, command.line, command.environment, stdin=subprocess.DEVNULL)
        self.port, self.url, self.key = port, f"http://127.0.0.1:{port}", ""
        try:
            self._wait()
            self.key = command.key()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise self.ended()
            with suppress(OSError, HTTPException):
                connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
                connection.request("GET", "/health")
                connection.getresponse()
                connection.close()
                return
            time.sleep(0.1)
        raise peers.Absent(f"{self.name} did not answer within {START_SECONDS} s")

    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_of(self.process.pid)

    def mebibytes(self) -> float:
        total = 0
        for pid in family(self.process.pid):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += int(text.split("Pss:")[1].split()[0])
        return total / 1024


def stat_of(pid: int) -> list[str]:
    """Fields of a process from its state on; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    stats = {int(each.name): stat_of(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for parent in found:
        found += [child for child, stat in stats.items() if stat and int(stat[1]) == parent]
    return found


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and its descendants so far."""
    stats = [stat for stat in map(stat_of, family(pid)) if stat]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS


@contextmanager
def stub(*options: str) -> Iterator[str]:
    """URL of the upstream."""
    line = [sys.executable, str(HERE / "_stub.py"), *options]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@contextmanager
def serve(name: str, upstream: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = Server(name, SIDES[name](upstream, port, Path(folder)), port)
        try:
            wait_until_ready(server)
            yield server
        finally:
            server.close()


def wait_until_ready(server: Server) -> None:
    """Until a request succeeds."""
    until = time.monotonic() + START_SECONDS
    while True:
        figures = load(server.url, server.key, "--requests=1")
        if not figures["errors"]:
            return
        if time.monotonic() > until:
            raise peers.Absent(f"{server.name} answered: {figures['first_error']}")
        time.sleep(0.2)


def load(url: str, key: str = "", *options: str) -> dict[str, Any]:
    """Figures of one run of the load generator."""
    line = [sys.executable, str(HERE / "_load.py"), url, f"--key={key}", *options]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "errors": 1,
            "first_error": done.stderr[-300:],
            "count": 0,
            "rate": 0,
            "p50": 0,
            "p99": 0,
            "cpu": 0,
        }
    return dict(json.loads(done.stdout))
