"""The registry through the gateway: every name of a model answers on first use, with a real supervisor and fake
engines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Rights
from rondo.jobs.spec import JobSpec
from rondo.supervisor.catalog import Loadable
from rondo.supervisor.control import ControlEndpoint
from rondo.supervisor.part import Part
from support.on_demand import FakeFleet
from support.waiting import wait_until

JOB, OLD = "1" * 64, "2" * 64


def write_job(home: Path, hash: str, name: str, step: int = 8) -> Path:
    """A finished LoRA job over the model `base`, with a checkpoint."""
    folder = home / "jobs" / hash
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "checkpoints" / f"step_{step}").mkdir(parents=True)
    (folder / "checkpoints" / f"step_{step}" / "manifest.json").write_text("{}")
    spec = {"kind": "sft", "dataset": "d" * 64, "config": {"lr": 0.1, "adapter": {"kind": "lora"}}}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "origin.json").write_text(json.dumps({"name": name, "model": "base", "base": "base"}))
    (folder / "metrics.jsonl").write_text('{"step": 8, "loss": 0.5}\n')
    (folder / "status.json").write_text('{"state": "succeeded", "step": 9}')
    exported = home / "cache" / "checkpoints" / f"{hash}@{step}"
    (exported / "model").mkdir(parents=True)
    (exported / "model" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (exported / "complete").touch()
    return folder


class AdapterStub(Stub):
    """Serves the adapters that it was told to load."""

    async def _answer(self, request: Request) -> Response:
        answer = await super()._answer(request)
        if request.url.path == "/v1/load_lora_adapter":
            self.models.append(self.requests[-1]["body"]["lora_name"])
        return answer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    write_job(tmp_path, OLD, "reader-old")
    write_job(tmp_path, JOB, "reader")
    return tmp_path


@pytest.fixture
def fleet(home: Path) -> FakeFleet:
    return FakeFleet(home / "engines", {"base": 60, "other": 60}, 100, restart_seconds=0.05)


@pytest.fixture
def gateway(home: Path, fleet: FakeFleet) -> Iterator[RunningGateway]:
    control = ControlEndpoint()
    control.begin(fleet.on_demand)
    settings = {"supervisor": control.url, "supervisor_key": control.key}
    with gateway_of([], home, **settings) as running:
        wait_until(lambda: len(entries(running)) == 2)
        yield running
    control.close()
    fleet.on_demand.stop()


def call(
    gateway: RunningGateway, method: str, path: str, body: Any = None, status: int = 200, key: str = ""
) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{gateway.url}/v1/registry{path}"
    answer = httpx.request(method, url, json=body, headers=headers, timeout=240)
    assert answer.status_code == status, answer.text
    return answer.json()


def entries(gateway: RunningGateway) -> dict[str, Any]:
    return {each["id"]: each for each in call(gateway, "GET", "")["data"]}


def model_of(gateway: RunningGateway, name: str) -> str:
    """The model that answers a request."""
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}
    answer = httpx.post(gateway.url + "/v1/chat/completions", json=body, timeout=240)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model"])


def test_each_name_answers_on_first_use_and_follows_promotion(gateway: RunningGateway) -> None:
    assert model_of(gateway, JOB) == JOB
    assert model_of(gateway, JOB[:10]) == JOB
    assert model_of(gateway, f"{JOB}@8") == f"{JOB}@8", "a checkpoint is registered when it is first named"
    assert model_of(gateway, "latest") == f"{JOB}@8"
    call(gateway, "PUT", "/aliases/live", {"model": OLD}, 200)
    assert model_of(gateway, "live") == OLD
    call(gateway, "PUT", "/aliases/live", {"model": f"{JOB}@8"})
    assert model_of(gateway, "live") == f"{JOB}@8"
    assert call(gateway, "POST", "/live/rollback")["id"] == OLD
    assert model_of(gateway, "live") == OLD
    assert call(gateway, "POST", f"/{JOB}/promote")["stage"] == "production"
    assert model_of(gateway, "reader") == JOB
    call(gateway, "POST", f"/{JOB}@8/promote")
    assert (model_of(gateway, "reader"), model_of(gateway, "reader-old")) == (f"{JOB}@8", OLD)
    assert entries(gateway)[JOB]["stage"] == "archived"
    listed = {card["id"]: card for card in httpx.get(gateway.url + "/v1/models").json()["data"]}
    assert (listed["live"]["root"], "latest" in listed) == (OLD, True)
    assert (
        httpx.post(gateway.url + "/v1/completions", json={"model": "none", "prompt": "x"}).status_code == 404
    )
    assert (
        httpx.post(gateway.url + "/v1/completions", json={"model": f"{JOB}@9", "prompt": "x"}).status_code
        == 404
    )


def test_checkpoints_of_fine_tuned_models_answer_under_openais_names(
    gateway: RunningGateway, home: Path
) -> None:
    tuned, running = "ft:base:rondo:mine:1234", "ft:base:rondo:mine:5678"
    done = write_job(home, "3" * 64, "", 4)
    (done / "origin.json").write_text(json.dumps({"model": "base", "base": "base", "aliases": [tuned]}))
    assert call(gateway, "POST", "", {"job": "3" * 64}, 201)["name"] == tuned
    assert model_of(gateway, f"{tuned}:ckpt-step-4") == f"{'3' * 64}@4"
    assert model_of(gateway, tuned) in (tuned, "3" * 64), "the name stays with the final model"
    assert call(gateway, "GET", f"/{tuned}:ckpt-step-4")["name"] == f"{tuned}:ckpt-step-4"
    folder = write_job(home, "4" * 64, "", 2)
    (folder / "origin.json").write_text(json.dumps({"model": "base", "base": "base"}))
    book = gateway.gateway.training.book
    row, _ = book.submit(JobSpec("sft", {"model": "base"}), "local", result=running, launcher="away").result()
    book.note(row, hash="4" * 64).result()
    assert model_of(gateway, f"{running}:ckpt-step-2") == f"{'4' * 64}@2", "the job still runs"
    asked = {"model": f"{running}:ckpt-step-3", "prompt": "x"}
    assert httpx.post(gateway.url + "/v1/completions", json=asked, timeout=60).status_code == 404
    call(gateway, "PUT", "/aliases/mine:ckpt-step-1", {"model": JOB}, 400)


def test_a_job_whose_process_still_ends_is_registered_under_the_name_of_its_result(
    gateway: RunningGateway, fleet: FakeFleet, home: Path
) -> None:
    hash, result = "5" * 64, "sl-result"
    folder = write_job(home, hash, "")
    (folder / "origin.json").write_text(json.dumps({"model": "base", "base": "base"}))
    book, registry = gateway.gateway.training.book, gateway.gateway.registry
    row, _ = book.submit(JobSpec("sft", {"model": "base"}), "local", result=result, launcher="away").result()
    book.note(row, hash=hash).result()
    fleet.extra.append(Loadable(hash, "other"))
    fleet.extra.append(Loadable("6" * 64, "other"))
    write_job(home, "6" * 64, "not-of-the-gateway")
    wait_until(lambda: "6" * 64 in entries(gateway))
    assert hash not in entries(gateway), "the gateway registers it when it has succeeded"
    asked = {"model": result, "prompts": ["x"], "wait": 0}
    assert httpx.post(f"{gateway.url}/v1/generate", json=asked).status_code == 404
    assert not registry.answers(result)
    assert call(gateway, "GET", f"/{hash[:9]}")["name"] == result, "it was named before"
    assert registry.answers(result)
    assert httpx.post(f"{gateway.url}/v1/generate", json=asked).status_code == 200


def test_an_entry_has_its_lineage_and_state(gateway: RunningGateway) -> None:
    wait_until(lambda: entries(gateway)[JOB]["digest"] is not None)
    entry = call(gateway, "GET", "/reader")
    shown = (entry["kind"], entry["base"], entry["state"], entry["aliases"])
    assert shown == ("lora", "base", "unloaded", ["reader"])
    assert entry["lineage"]["data"] == "d" * 64
    assert entry["lineage"]["metrics"] == {"loss": 0.5}
    call(gateway, "POST", "/reader/load")
    assert call(gateway, "GET", "/reader")["state"] == "ready"
    call(gateway, "POST", "/reader/unload")
    wait_until(lambda: call(gateway, "GET", "/reader")["state"] == "unloaded")
    assert model_of(gateway, "reader") in ("reader", JOB)
    call(gateway, "DELETE", f"/{OLD}")
    call(gateway, "GET", f"/{OLD}@7", status=404)


def test_folders_are_registered_by_admins_and_least_recently_used_models_make_room(
    gateway: RunningGateway, home: Path
) -> None:
    whole = home / "elsewhere"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    made = call(gateway, "POST", "", {"source": str(whole), "name": "whole"}, 201)
    assert (made["kind"], made["id"] == made["job"], made["digest"]) == ("full", True, made["id"])
    for wrong, field in (
        ({"source": str(home)}, "name"),
        ({"job": JOB, "source": "/x"}, "job"),
        ({"job": "none"}, "job"),
    ):
        answer = httpx.post(f"{gateway.url}/v1/registry", json=wrong)
        assert (answer.status_code in (400, 404), answer.json()["error"]["param"]) == (True, field)
    call(gateway, "POST", "", {"source": str(home / "none"), "name": "x"}, 404)
    assert model_of(gateway, "other") == "other"
    assert model_of(gateway, JOB) == JOB, "the idle engine of the other model has made room for the base"
    states = {row["id"]: row["state"] for row in gateway.gateway.loading.models}
    assert states["other"] != "ready"


def test_keys_see_and_change_what_they_may(home: Path) -> None:
    with served(AdapterStub(["base"])) as stub, gateway_of([stub.url], home, keys="required") as gateway:
        keys = gateway.gateway.keys
        _, admin = keys.make("admin", Rights("admin")).result()
        _, user = keys.make("user", Rights()).result()
        _, narrow = keys.make("narrow", Rights(models=("live",))).result()
        wait_until(lambda: len(call(gateway, "GET", "", key=admin)["data"]) == 2)
        assert call(gateway, "GET", "", key=narrow)["data"] == []
        call(gateway, "POST", f"/{JOB}/promote", status=403, key=user)
        call(gateway, "POST", "", {"source": "/etc", "name": "etc"}, 403, user)
        call(gateway, "PUT", "/aliases/base", {"model": JOB}, 409, admin)
        call(gateway, "PUT", "/aliases/live", {"model": JOB}, key=admin)
        call(gateway, "PUT", "/aliases/live", {"model": OLD}, 403, user)
        assert [each["id"] for each in call(gateway, "GET", "", key=narrow)["data"]] == [JOB]
        body = {"model": "live", "prompt": "x"}
        headers = {"Authorization": f"Bearer {narrow}"}
        answer = httpx.post(gateway.url + "/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.json()["model"] == JOB, answer.text
        assert stub.requests[0]["body"] == {
            "lora_name": JOB,
            "lora_path": str(home / "jobs" / JOB / "adapter"),
        }


def test_a_model_of_the_command_line_answers_under_every_name(home: Path) -> None:
    whole = home / "elsewhere"
    whole.mkdir()
    (whole / "config.json").write_text("{}")
    fleet, control = FakeFleet(home / "engines", {"base": 60}, 100), ControlEndpoint()
    control.begin(fleet.on_demand)
    settings = {"supervisor": control.url, "supervisor_key": control.key}
    with served(Stub(["own"])) as stub, gateway_of([stub.url], home, **settings) as gateway:
        fleet.on_demand._pinned.append((Part("engine-1", [], {}, stub.url), str(whole)))
        made = call(gateway, "POST", "", {"source": str(whole), "name": "whole"}, 201)
        call(gateway, "PUT", "/aliases/live", {"model": made["id"]})
        wait_until(lambda: call(gateway, "GET", "/live")["state"] == "ready")
        assert [model_of(gateway, name) for name in ("live", "whole", made["id"], "own")] == ["own"] * 4
    control.close()
    fleet.on_demand.stop()


def test_pages_have_models_that_the_key_may_use(home: Path) -> None:
    with served(Stub(["base"])) as stub, gateway_of([stub.url], home, keys="required") as gateway:
        keys = gateway.gateway.keys
        _, admin = keys.make("admin", Rights("admin")).result()
        _, narrow = keys.make("narrow", Rights(models=("reader",))).result()
        wait_until(lambda: len(call(gateway, "GET", "", key=admin)["data"]) == 2)
        pages = [call(gateway, "GET", "?limit=1", key=each) for each in (admin, narrow)]
        assert [page["has_more"] for page in pages] == [True, False]
        assert [page["data"][0]["id"] for page in pages] == [OLD, JOB], "a page is filtered before it is cut"
