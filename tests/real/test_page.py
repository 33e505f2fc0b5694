"""The web page in Chromium, on a real gateway and engine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.gateway.schema import schema
from support.home import own_home
from support.ports import free_port
from support.served import SOURCES, write_model
from support.waiting import scaled, wait_until

pytestmark = pytest.mark.real
PAGE = SOURCES.parent / "page"


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run(
        [sys.executable, SOURCES.parent / "tools" / "build_page.py"], check=True, timeout=scaled(300)
    )


def test_unit_tests_of_the_page(built: None) -> None:
    npm = shutil.which("npm")
    assert npm
    subprocess.run([npm, "test"], cwd=PAGE, check=True, timeout=scaled(120))


def test_types_of_the_page_are_those_of_the_gateway() -> None:
    assert schema() + "\n" == (PAGE / "openapi.json").read_text(), "make it anew: see page/README.md"


@pytest.mark.parametrize("keys", ["optional", "required"])
def test_every_view_in_chromium(built: None, tmp_path: Path, keys: str) -> None:
    home = own_home(tmp_path / "home")
    write_model(home / "models" / "toy")
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(home)}
    port = free_port()
    command = [sys.executable, "-m", "rondo.cli", "up", "toy", f"--port={port}", f"--gateway.keys={keys}"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        up = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    try:
        wait_until(lambda: b"models: toy" in log.read_bytes(), 240)
        key = [(home / "admin-key").read_text().strip()] if keys == "required" else []
        gateway = _pid_of_gateway(home)
        subprocess.run(
            ["node", "e2e.mjs", f"http://127.0.0.1:{port}", *key],
            cwd=PAGE,
            env=env | {"RONDO_KILL": str(gateway)},
            check=True,
            timeout=scaled(300),
        )
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(scaled(120)) == 0


def _pid_of_gateway(home: Path) -> int:
    parts = json.loads((home / "supervisor.json").read_text())["parts"]
    return int(parts[0]["pid"])
