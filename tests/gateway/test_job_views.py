"""What the page shows of jobs beyond their state: the forecast before submission, rollouts and alarms."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.stub import RunningGateway, gateway_of
from rl._rollouts import asked, equally, judged, said
from rondo.base.storage.home import jobs_dir, models_dir
from rondo.control.tables import jobs
from rondo.rl.record.events import EventLog
from rondo.rl.record.store import FOLDER, RolloutStore
from support.served import write_model

HASH = "a" * 64


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("views")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        write_model(models_dir() / "toy")
        with gateway_of([], folder, jobs={"poll_seconds": 3600, "slots": 1}) as running:
            yield running


def post(gateway: RunningGateway, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{gateway.url}{path}", json={"model": "toy", **body}, timeout=60)


def forecast(gateway: RunningGateway, **body: Any) -> dict[str, Any]:
    answer = post(gateway, "/v1/jobs/forecast", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def upload(gateway: RunningGateway, records: int) -> str:
    record = {"messages": [{"role": "user", "content": "Zorb?"}, {"role": "assistant", "content": "Green."}]}
    data = "\n".join([json.dumps(record)] * records)
    files = {"file": ("facts.jsonl", data)}
    sent = httpx.post(f"{gateway.url}/v1/files", data={"purpose": "fine-tune"}, files=files, timeout=60)
    return str(sent.json()["id"])


def test_forecast_of_memory_and_tokens(gateway: RunningGateway) -> None:
    lora = {"adapter.kind": "lora", "adapter.r": 4}
    found = forecast(gateway, kind="sft", data=upload(gateway, 1000), settings=lora | {"epochs": 2})
    assert (found["records"], found["fits"]) == (1000, True)
    assert found["memory_bytes"] == pytest.approx(sum(found["memory_parts"].values()), abs=20)
    assert found["trained_parameters"] < found["parameters"]
    twice = forecast(gateway, kind="sft", data=upload(gateway, 1000), settings=lora | {"epochs": 4})
    assert twice["tokens"] == pytest.approx(2 * found["tokens"], rel=0.01)
    assert twice["steps"] > found["steps"]
    counted = forecast(gateway, kind="pretrain", settings={"steps": 3, "tokens_per_step": 100})
    assert (counted["steps"], counted["tokens"]) == (3, 300)


def test_forecast_of_reinforcement(gateway: RunningGateway) -> None:
    settings = {"steps": 2, "prompts_per_step": 3, "samples_per_prompt": 4, "max_tokens": 5}
    found = forecast(gateway, kind="rl", task="reverse", settings=settings)
    assert (found["steps"], found["tokens"]) == (2, 120)
    assert found["memory_bytes"] > 0


def test_forecast_says_what_is_not_known(gateway: RunningGateway) -> None:
    found = forecast(gateway, kind="sft", model="nowhere")
    assert (found["memory_bytes"], found["tokens"], found["seconds"]) == (None, None, None)
    assert "nowhere is not on this machine" in found["notes"][0]
    refused = post(gateway, "/v1/jobs/forecast", kind="sft", settings={"lr": -1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "settings.lr")
    assert post(gateway, "/v1/jobs/forecast", kind="evaluate").status_code == 400


@pytest.fixture(scope="module")
def job(gateway: RunningGateway) -> str:
    """An RL job with rollouts of two steps and an alarm."""
    job = str(post(gateway, "/v1/jobs", kind="rl", task="reverse").json()["id"])
    named = sa.update(jobs).where(jobs.c.id == job).values(hash=HASH)
    gateway.store.write(lambda db: db.execute(named)).result()
    folder = jobs_dir() / HASH
    store = RolloutStore(folder / FOLDER, 10, 1 << 30)
    for step in (1, 2):
        groups = [asked("abc", [said("c", judged(0.25)), said("cba", judged(1.0))])]
        store.put(step, groups, equally(groups))
    EventLog(folder).add("alarm", 2, alarm="entropy", since=1, saw="it fell", advice="raise it")
    return job


def test_rollouts_by_step_with_their_tokens(gateway: RunningGateway, job: str) -> None:
    url = f"{gateway.url}/v1/jobs/{job}/rollouts"
    page = httpx.get(url, params={"step": 1, "sort": "reward"}, timeout=60).json()
    assert page["steps"] == [1, 2]
    assert [(each["id"], each["reward"], each["advantage"]) for each in page["data"]] == [
        ("1-0-1", 1.0, 0.5),
        ("1-0-0", 0.25, 0.5),
    ]
    assert [each["prompt"] for each in page["data"]] == ["abc", "abc"]
    (best,) = httpx.get(url, params={"where": ["reward>0.5", "step=2"]}, timeout=60).json()["data"]
    whole = httpx.get(f"{url}/{best['id']}", timeout=60).json()
    assert len(whole["pieces"][0]["tokens"]) == len(whole["pieces"][0]["logprobs"]) == 3
    assert httpx.get(url, params={"where": "reward"}, timeout=60).status_code == 400
    assert httpx.get(f"{url}/9-0-0", timeout=60).status_code == 404


def test_alarms(gateway: RunningGateway, job: str) -> None:
    (alarm,) = httpx.get(f"{gateway.url}/v1/jobs/{job}/alarms", timeout=60).json()["data"]
    assert (alarm["alarm"], alarm["since"], alarm["over"]) == ("entropy", 1, False)
