"""The web page in Chromium, on a real gateway and engine."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rondo.gateway.app import schema
from support.home import own_home
from support.ports import free_port
from support.served import SOURCES, write_model
from support.waiting import scaled, slowness, wait_until

pytestmark = pytest.mark.real
PAGE = SOURCES.parent / "page"
STATIC = SOURCES / "rondo" / "gateway" / "static"


TRAINED = {"facts": 0.001, "faster": 0.003}
"""Learning rates of the jobs by name."""
RL = {"steps": 3, "prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 8, "evaluate.every": 0}


@dataclass(frozen=True)
class Platform:
    url: str
    key: str
    home: Path

    def drive(self, view: str) -> None:
        parts = json.loads((self.home / "supervisor.json").read_text())["parts"]
        drive(self.url, view, {"RONDO_KEY": self.key, "RONDO_KILL": str(parts[0]["pid"])})


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run(
        [sys.executable, SOURCES.parent / "tools" / "build_page.py"], check=True, timeout=scaled(300)
    )


@pytest.fixture(scope="module")
def platform(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Gateway and engine, with jobs that begin to train."""
    folder = tmp_path_factory.mktemp("page")
    home = own_home(folder / "home")
    write_model(home / "models" / "toy")
    port, log = free_port(), folder / "log"
    up = start(["up", "toy", f"--port={port}", "--gateway.keys=required"], home, log)
    try:
        wait_until(lambda: b"models: toy" in log.read_bytes(), 240)
        found = Platform(f"http://127.0.0.1:{port}", (home / "admin-key").read_text().strip(), home)
        submit_jobs(found)
        yield found
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(scaled(120)) == 0


def start(command: list[str], home: Path, log: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(home)}
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "rondo.cli", *command], env=env, stdout=out, stderr=out
        )


def drive(url: str, view: str, told: dict[str, str]) -> None:
    env = {**os.environ, "TEST_SLOWNESS": str(slowness()), **told}
    subprocess.run(["node", "e2e/main.mjs", url, view], cwd=PAGE, env=env, check=True, timeout=scaled(240))


def submit_jobs(platform: Platform) -> None:
    record = {
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Zorb is green."}]
    }
    data = b"\n".join([json.dumps(record).encode()] * 3)
    headers = {"Authorization": f"Bearer {platform.key}"}
    with httpx.Client(base_url=platform.url, headers=headers, timeout=scaled(60)) as client:
        form = {"data": {"purpose": "fine-tune"}, "files": {"file": ("facts.jsonl", data)}}
        file = client.post("/v1/files", **form).raise_for_status().json()["id"]
        for name, lr in TRAINED.items():
            settings = {"lr": lr, "steps": 8, "adapter.kind": "lora", "evaluate.held_out": 0}
            job = {"kind": "sft", "model": "toy", "name": name, "data": file, "settings": settings}
            client.post("/v1/jobs", json=job).raise_for_status()
        job = {"kind": "rl", "model": "toy", "name": "reverser", "task": "reverse", "settings": RL}
        client.post("/v1/jobs", json=job).raise_for_status()


def test_unit_tests_of_the_page(built: None) -> None:
    npm = shutil.which("npm")
    assert npm
    subprocess.run([npm, "test"], cwd=PAGE, check=True, timeout=scaled(120))


def test_each_file_is_compressed_as_well(built: None) -> None:
    files = [file for file in STATIC.rglob("*") if file.suffix in (".html", ".js", ".css", ".svg")]
    assert files
    for file in files:
        assert gzip.decompress(file.with_name(f"{file.name}.gz").read_bytes()) == file.read_bytes()


def test_types_of_the_page_are_those_of_the_gateway() -> None:
    assert schema() + "\n" == (PAGE / "openapi.json").read_text(), "make it anew: see page/README.md"


VIEWS = (
    *("shell", "playground", "engines", "queue", "keys", "states", "responses", "evals"),
    *("jobs", "rollouts", "models", "restart"),
)
"""As `page/e2e/main.mjs` names them. Jobs of the fixture train meanwhile; the last one kills the gateway."""


@pytest.mark.parametrize("view", VIEWS)
def test_view_in_chromium(platform: Platform, view: str) -> None:
    platform.drive(view)


def test_the_shell_without_keys(built: None, tmp_path: Path) -> None:
    port, home = free_port(), own_home(tmp_path / "home")
    command = ["gateway", f"--gateway.port={port}", "--gateway.keys=optional"]
    log = tmp_path / "log"
    gateway = start(command, home, log)
    try:
        wait_until(lambda: b"is listening" in log.read_bytes(), 120)
        drive(f"http://127.0.0.1:{port}", "shell", {})
    finally:
        gateway.terminate()
        assert gateway.wait(scaled(60)) == 0
