"""A real Prometheus that scrapes one target."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.ports import free_port

CONFIG = """
global: {{scrape_interval: 200ms}}
scrape_configs:
- job_name: rondo
  static_configs: [{{targets: ["{target}"]}}]
"""


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[httpx.Client]:
    program = shutil.which("prometheus")
    assert program, "no prometheus on the PATH; `make test-real` installs it (apt-get install prometheus)"
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    port = free_port()
    process = subprocess.Popen(
        [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=(folder / "log").open("w"),
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as client:
            wait_until_ready(client, folder / "log")
            yield client
    finally:
        process.terminate()
        process.wait(20)


def wait_until_ready(client: httpx.Client, log: Path) -> None:
    for _ in range(150):
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"prometheus is not ready after 15 s:\n{log.read_text()[-2000:]}")


def query(client: httpx.Client, expression: str, *, above: float = 0.0) -> dict[str, Any]:
    """The one series of an expression, once its value is above a bound. It takes Prometheus 5 s to find its target."""
    found: list[dict[str, Any]] = []
    for _ in range(300):
        found = client.get("/api/v1/query", params={"query": expression}).json()["data"]["result"]
        if found and float(found[0]["value"][1]) > above:
            assert len(found) == 1, found
            return found[0]
        time.sleep(0.1)
    pytest.fail(f"{expression} was not above {above} within 30 s: {found}")
