"""A real Prometheus scrapes an engine server and a training job, and its queries find what dashboards ask for."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.server.config import ServerConfig
from rondo.train import jobs
from rondo.train.config import MetricsConfig, TrainConfig
from server.running import Running, make_model, start
from support.ports import free_port
from support.prometheus import query, scraping
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

NAME = "scraped"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_model(tmp_path_factory.mktemp("served") / "tiny")
    # Engines of earlier tests in this process still export their series: a name of its own keeps them apart.
    yield from start(folder, config=ServerConfig(port=0, served_model_name=NAME))


@pytest.fixture(scope="module")
def prometheus(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with scraping(running.url.removeprefix("http://"), tmp_path_factory.mktemp("prometheus")) as client:
        yield client


def of_model(series: str) -> str:
    return f'{series}{{model_name="{NAME}"}}'


def test_the_target_is_up_and_counts_tokens(running: Running, prometheus: httpx.Client) -> None:
    query(prometheus, 'up{job="rondo"}')
    body = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).status_code == 200
    series = query(prometheus, of_model("rondo:generation_tokens_total"), above=8)
    assert float(series["value"][1]) == 9
    assert series["metric"]["model_name"] == NAME
    query(prometheus, of_model("rondo:prompt_tokens_total"), above=2)


def test_latency_histograms_answer_quantiles(running: Running, prometheus: httpx.Client) -> None:
    body = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).status_code == 200
    for stem in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        query(prometheus, of_model(f"rondo:{stem}_count"))
        quantile = f"histogram_quantile(0.5, sum by (le) ({of_model(f'rondo:{stem}_bucket')}))"
        assert 0 < float(query(prometheus, quantile)["value"][1]) < 60


def test_nothing_it_scraped_was_refused(prometheus: httpx.Client) -> None:
    targets = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert [target["lastError"] for target in targets] == [""]


def test_a_training_job_is_scraped_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    with atomic_dir(tmp_path / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    lines = [json.dumps({"text": f"the user asks {i} and the assistant answers"}) for i in range(20)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    port = free_port()
    config = TrainConfig(
        model=str(tmp_path / "model"),
        data=str(tmp_path / "data.jsonl"),
        steps=4,
        tokens_per_step=200,
        tokens_per_microbatch=128,
        max_length=64,
        metrics=MetricsConfig(port=port),
    )
    told: dict[str, float] = {}
    with scraping(f"127.0.0.1:{port}", tmp_path) as client:

        def look(step: int, metrics: dict[str, float]) -> None:
            if step == 3:
                found = {
                    name: query(client, f"rondo:train_{name}", above=-1)
                    for name in ("loss", "mfu", "tokens_per_second", "memory_resident_peak")
                }
                query(client, "rondo:train_step", above=2.5)
                assert found["loss"]["metric"]["job_hash"] == plan.job.short
                told.update(metrics)
                tokens = query(client, "rondo:train_input_tokens_total", above=2 * metrics["input_tokens"])
                assert float(tokens["value"][1]) > metrics["input_tokens"]

        plan = jobs.plan("pretrain", config)
        jobs.run(plan, look)
        assert "rondo:train_loss" in (plan.job.path / "metrics.prom").read_text()
    assert told
