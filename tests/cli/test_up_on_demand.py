"""`rondo up` with models that load on first use: engines, adapters, jobs, kill -9 of an engine and the supervisor."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.adapters import write_lora
from support.forks import inner, python
from support.home import own_home
from support.processes import alive
from support.served import write_model
from support.tiny import tiny_model
from support.up import Up, running_up
from support.waiting import wait_until

JOB = "1" * 64


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = own_home(tmp_path_factory.mktemp("demand") / "home")
    for name in ("toy", "other"):
        write_model(home / "models" / name)
    write_model(home / "jobs" / JOB / "export")
    (home / "jobs" / JOB / "spec.json").write_text("{}")
    (home / "jobs" / JOB / "origin.json").write_text('{"name": "trained"}')
    tuned = home / "jobs" / ("2" * 64)
    write_lora(tiny_model(), tuned / "adapter")
    (tuned / "spec.json").write_text("{}")
    origin = {"name": "tuned", "base": str(home / "models" / "toy")}
    (tuned / "origin.json").write_text(json.dumps(origin))
    return home


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[Up]:
    with running_up(home, JOB, "toy", program=python()) as running:
        yield running


def complete(up: Up, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "a", "max_tokens": 2}
    return httpx.post(up.url + "/v1/completions", json=body, timeout=600)


def test_a_served_job_has_its_name_and_answers_by_its_hash(up: Up) -> None:
    cards = {card["id"]: card for card in httpx.get(up.url + "/v1/models").json()["data"]}
    assert cards["trained"]["aliases"] == [JOB]
    assert [cards[name]["loaded"] for name in ("trained", "toy", "other", "tuned")] == [1, 1, 0, 0]
    assert [complete(up, name).status_code for name in ("trained", JOB)] == [200, 200]
    assert up.parts()["engine-1"]["model"] == "trained"
    assert b'"model": "trained"' in (up.home / "out").read_bytes()


def test_a_model_loads_once_and_again_after_its_engine_is_killed(up: Up) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: complete(up, "other"), range(2)))
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    part = up.parts()["model-other"]
    assert (part["state"], part["model"]) == ("running", "other")
    assert "memory of the engines: about" in up.rondo("ps")
    pid = part["pid"]
    assert isinstance(pid, int)
    os.kill(inner(pid), signal.SIGKILL)
    assert complete(up, "other").status_code == 200
    assert up.parts()["model-other"]["pid"] != pid


def test_a_lora_job_joins_the_engine_of_its_base(up: Up) -> None:
    answer = complete(up, "tuned")
    assert (answer.status_code, answer.json()["model"]) == (200, "tuned"), answer.text
    assert "model-tuned" not in up.parts()


def test_the_kv_usage_of_engines_is_reported(up: Up) -> None:
    engines = httpx.get(up.url + "/v1/engines").json()["data"]
    assert all(0 <= engine["kv_usage"] <= 1 for engine in engines)


def test_after_kill_9_of_the_supervisor_a_second_one_serves_the_same_models(
    home: Path, tmp_path: Path
) -> None:
    again = own_home(tmp_path / "home")
    (again / "models").symlink_to(home / "models")
    with running_up(again, "toy", program=python()) as killed:
        assert complete(killed, "other").status_code == 200
        pids = [inner(part["pid"]) for part in killed.parts().values() if isinstance(part["pid"], int)]
        os.kill(inner(killed.process.pid), signal.SIGKILL)
        killed.process.wait()
    assert len(pids) == 3
    wait_until(lambda: not any(map(alive, pids)))
    with running_up(again, "toy", program=python()) as second:
        assert complete(second, "other").status_code == 200
