"""A real Prometheus scrapes a real engine server, and its queries find what dashboards ask for."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rondo.server.config import ServerConfig
from server.running import Running, make_model, start
from support.ports import free_port

pytestmark = pytest.mark.real

CONFIG = """
global: {{scrape_interval: 200ms}}
scrape_configs:
- job_name: rondo
  static_configs: [{{targets: ["{target}"]}}]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_model(tmp_path_factory.mktemp("served") / "tiny")
    yield from start(folder, config=ServerConfig(port=0, served_model_name="tiny"))


@pytest.fixture(scope="module")
def prometheus(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    program = shutil.which("prometheus")
    assert program, "no prometheus on the PATH; `make test-real` installs it (apt-get install prometheus)"
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(CONFIG.format(target=running.url.removeprefix("http://")))
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
    """The one series of an expression, once its value is above a bound."""
    found: list[dict[str, Any]] = []
    for _ in range(100):
        found = client.get("/api/v1/query", params={"query": expression}).json()["data"]["result"]
        if found and float(found[0]["value"][1]) > above:
            assert len(found) == 1, found
            return found[0]
        time.sleep(0.1)
    pytest.fail(f"{expression} was not above {above} within 10 s: {found}")


def test_the_target_is_up_and_counts_tokens(running: Running, prometheus: httpx.Client) -> None:
    query(prometheus, 'up{job="rondo"}')
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).status_code == 200
    series = query(prometheus, "rondo:generation_tokens_total", above=8)
    assert float(series["value"][1]) == 9
    assert series["metric"]["model_name"] == "tiny"
    query(prometheus, "rondo:prompt_tokens_total", above=2)


def test_latency_histograms_answer_quantiles(running: Running, prometheus: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).status_code == 200
    for stem in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        query(prometheus, f"rondo:{stem}_count")
        quantile = f"histogram_quantile(0.5, sum by (le) (rondo:{stem}_bucket))"
        assert 0 < float(query(prometheus, quantile)["value"][1]) < 60


def test_nothing_it_scraped_was_refused(prometheus: httpx.Client) -> None:
    targets = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert [target["lastError"] for target in targets] == [""]
