"""OpenAI's fine-tuning API and the job API, with a stand-in for the command that trains."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.stub import RunningGateway, gateway_of
from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.key import Rights
from rondo.gateway.routes.training import fine_tuning as routes
from rondo.gateway.training.shown import fine_tuning_job, openai_metrics, with_files
from rondo.jobs.folders import aliases_of
from rondo.jobs.spec import JobSpec
from rondo.rl.tasks.files import read_task
from rondo.train.config import PreferenceConfig
from rondo.train.losses.preference import Dpo
from support.waiting import wait_until

PROGRAM = """
import json, os, pathlib, signal, sys, time
spec = json.loads(sys.argv[1])
folder = pathlib.Path(os.environ["RONDO_HOME"]) / "jobs" / ("ab" * 32)
(folder / "checkpoints" / "step_2").mkdir(parents=True, exist_ok=True)
(folder / "checkpoints" / "step_2" / "manifest.json").write_text("{}")
def write(path, what):
    new = pathlib.Path(str(path) + ".new")
    new.write_text(json.dumps(what))
    new.rename(path)
def pause(*_):
    write(folder / "status.json", {"state": "paused", "step": 1, "time": time.time()}); os._exit(0)
signal.signal(signal.SIGTERM, pause)
write(folder / "spec.json", spec)
write(folder / "status.json", {"state": "running", "step": 1, "steps": 2, "time": time.time() + 9})
steps = [{"step": n, "loss": 1 / n, "tokens": 7, "examples": n + 3.0} for n in (1, 2)]
(folder / "metrics.jsonl").write_text("".join(json.dumps(each) + chr(10) for each in steps))
write(os.environ["RONDO_JOB_REPORT"], {"hash": folder.name, "steps": 2})
print("training on", spec.get("data") or spec.get("task"))
while not (folder / "go").exists(): time.sleep(0.02)
write(folder / "status.json", {"state": "succeeded", "step": 2, "steps": 2})
"""
RECORD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def command(spec: JobSpec) -> list[str]:
        return [sys.executable, "-S", str(program), json.dumps(dict(spec.settings))]

    jobs = {"poll_seconds": 0.05, "grace_seconds": 5.0}
    with gateway_of([], tmp_path, keys="required", jobs=jobs) as running:
        launcher = next(iter(running.gateway.training.launchers.values()))
        assert isinstance(launcher, LocalLauncher)
        launcher.command = command
        yield running
        (tmp_path / "home" / "jobs" / ("ab" * 32)).mkdir(parents=True, exist_ok=True)
        go(tmp_path)


def go(tmp_path: Path) -> None:
    (tmp_path / "home" / "jobs" / ("ab" * 32) / "go").touch()


def write_adapter(tmp_path: Path) -> None:
    adapter = tmp_path / "home" / "jobs" / ("ab" * 32) / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def client(gateway: RunningGateway, name: str = "ann", rights: Rights | None = None) -> openai.OpenAI:
    _, text = gateway.gateway.keys.make(name, rights or Rights()).result()
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=text, max_retries=0)


def upload(api: openai.OpenAI, records: list[dict[str, Any]], purpose: Any = "fine-tune") -> str:
    lines = "".join(json.dumps(each) + "\n" for each in records)
    return api.files.create(file=("data.jsonl", lines.encode()), purpose=purpose).id


def status(api: openai.OpenAI, id: str) -> str:
    return api.fine_tuning.jobs.retrieve(id).status


def test_the_life_of_a_supervised_job(gateway: RunningGateway, tmp_path: Path) -> None:
    api = client(gateway)
    file = upload(api, [RECORD])
    job = api.fine_tuning.jobs.create(
        model="base", training_file=file, suffix="mine", metadata={"team": "red"}, seed=7
    )
    assert (job.object, job.model, job.training_file, job.seed) == ("fine_tuning.job", "base", file, 7)
    assert job.method is not None
    assert job.method.supervised is not None
    assert job.hyperparameters.n_epochs == "auto"
    api.files.delete(file)
    wait_until(lambda: status(api, job.id) == "running")
    assert api.fine_tuning.jobs.retrieve(job.id).estimated_finish is not None
    api.fine_tuning.jobs.pause(job.id)
    wait_until(lambda: status(api, job.id) == "paused")
    api.fine_tuning.jobs.resume(job.id)
    go(tmp_path)
    wait_until(lambda: status(api, job.id) == "succeeded")
    done = api.fine_tuning.jobs.retrieve(job.id)
    assert done.fine_tuned_model is not None
    assert done.fine_tuned_model.startswith("ft:base:rondo:mine:")
    assert (done.trained_tokens, done.error) == (14, None)
    chosen = {"batch_size": 4, "learning_rate_multiplier": 1, "n_epochs": 3}
    assert done.hyperparameters.to_dict() == chosen
    assert done.method is not None
    assert done.method.supervised is not None
    assert done.method.supervised.to_dict() == {"hyperparameters": chosen}
    assert aliases_of(tmp_path / "home" / "jobs" / ("ab" * 32)) == [done.fine_tuned_model]
    events = list(api.fine_tuning.jobs.list_events(job.id, limit=2))
    assert events[0].message == "Job succeeded."
    assert next(event.data for event in events if event.type == "metrics") == {"step": 2, "train_loss": 0.5}
    assert events[-1].message == f"Job {job.id} was submitted."
    (checkpoint,) = api.fine_tuning.jobs.checkpoints.list(job.id)
    assert (checkpoint.step_number, checkpoint.metrics.train_loss) == (2, 0.5)
    assert [each.id for each in api.fine_tuning.jobs.list(metadata={"team": "red"})] == [job.id]
    assert list(api.fine_tuning.jobs.list(metadata={"team": "blue"})) == []
    with pytest.raises(openai.ConflictError, match="is succeeded"):
        api.fine_tuning.jobs.cancel(job.id)


def test_chosen_hyperparameters_and_accuracy_of_pairs(gateway: RunningGateway) -> None:
    api = client(gateway)
    answer = [{"role": "assistant", "content": "b"}]
    pair = {"input": {"messages": RECORD["messages"][:1]}}
    file = upload(api, [pair | {"preferred_output": answer, "non_preferred_output": answer}])
    method: Any = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 2}}}
    job = api.fine_tuning.jobs.create(model="base", training_file=file, method=method)
    wait_until(lambda: status(api, job.id) == "running")
    shown = api.fine_tuning.jobs.retrieve(job.id).method
    assert shown is not None
    assert shown.dpo is not None
    assert shown.dpo.to_dict()["hyperparameters"] == {
        "batch_size": 4,
        "beta": 0.1,
        "learning_rate_multiplier": 1,
        "n_epochs": 2,
    }
    assert PreferenceConfig().loss == "dpo"
    assert Dpo().beta == 0.1
    assert openai_metrics({"step": 1, "loss": 0.5, "accuracy": 1.0, "held_out/accuracy": 0.5}) == {
        "step": 1,
        "train_loss": 0.5,
        "train_preference_accuracy": 1.0,
        "valid_preference_accuracy": 0.5,
    }
    answers = {"token_accuracy": 0.5, "evaluate/loss": 0.25, "evaluate/token_accuracy": 0.75}
    assert openai_metrics({"step": 2} | answers) == {
        "step": 2,
        "train_mean_token_accuracy": 0.5,
        "valid_loss": 0.25,
        "valid_mean_token_accuracy": 0.75,
        "full_valid_loss": 0.25,
        "full_valid_mean_token_accuracy": 0.75,
    }


def test_a_cancelled_job_and_an_equal_one(gateway: RunningGateway) -> None:
    api = client(gateway)
    file = upload(api, [RECORD])
    job = api.fine_tuning.jobs.create(model="base", training_file=file)
    again = api.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD]))
    assert again.id == job.id, "equal contents are the same job"
    wait_until(lambda: status(api, job.id) == "running")
    assert api.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    other = api.fine_tuning.jobs.create(model="base", training_file=file)
    assert other.id != job.id


def test_jobs_of_another_key_do_not_exist(gateway: RunningGateway) -> None:
    api, other = client(gateway), client(gateway, "other")
    job = api.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD]))
    assert list(other.fine_tuning.jobs.list()) == []
    with pytest.raises(openai.NotFoundError):
        other.fine_tuning.jobs.cancel(job.id)
    with pytest.raises(openai.NotFoundError):
        other.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD]))
    admin = client(gateway, "admin", Rights("admin"))
    assert [each.id for each in admin.fine_tuning.jobs.list()] == [job.id]


def test_a_fine_tuned_model_is_deleted_by_its_owner(gateway: RunningGateway, tmp_path: Path) -> None:
    api, other = client(gateway), client(gateway, "other")
    job = api.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD]))
    wait_until(lambda: status(api, job.id) == "running")
    write_adapter(tmp_path)
    go(tmp_path)
    wait_until(lambda: status(api, job.id) == "succeeded")
    model = api.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    assert model is not None
    registry = gateway.gateway.registry
    assert registry.book.find(model).result().job == "ab" * 32
    without = client(gateway, "without", Rights(scopes=("inference", "files")))
    with pytest.raises(openai.PermissionDeniedError):
        without.models.delete(model)
    for api_key, name in ((other, model), (api, "base"), (api, job.id), (api, "ab" * 32)):
        with pytest.raises(openai.NotFoundError, match="no fine-tuned model"):
            api_key.models.delete(name)
    deleted = api.models.delete(model)
    assert (deleted.id, deleted.object, deleted.deleted) == (model, "model", True)
    assert not (tmp_path / "home" / "jobs" / ("ab" * 32)).exists()
    with pytest.raises(NotFound):
        registry.book.find(model).result()
    shown = api.fine_tuning.jobs.retrieve(job.id)
    assert shown.status == "succeeded"
    assert api.files.content(shown.result_files[0]).text.startswith("step,train_loss")
    again = api.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD]))
    assert again.id != job.id, "the model is trained again"


def test_a_model_under_two_names_loses_the_deleted_one(gateway: RunningGateway, tmp_path: Path) -> None:
    api, other = client(gateway), client(gateway, "other")
    models = []
    for each in (api, other):
        job = each.fine_tuning.jobs.create(model="base", training_file=upload(each, [RECORD]))
        # The second job finds the first one's result.
        wait_until(lambda each=each, job=job: status(each, job.id) in ("running", "succeeded"))  # type: ignore[misc]
        write_adapter(tmp_path)
        go(tmp_path)
        wait_until(lambda each=each, job=job: status(each, job.id) == "succeeded")  # type: ignore[misc]
        models.append(each.fine_tuning.jobs.retrieve(job.id).fine_tuned_model)
    folder = tmp_path / "home" / "jobs" / ("ab" * 32)
    assert aliases_of(folder) == models
    book = gateway.gateway.registry.book
    assert {book.find(str(each)).result().id for each in models} == {"ab" * 32}
    api.models.delete(str(models[0]))
    assert aliases_of(folder) == models[1:]
    assert book.find(str(models[1])).result().name == models[1]
    with pytest.raises(NotFound):
        book.find(str(models[0])).result()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "../../etc"}, "model"),
        ({"model": "/etc"}, "model"),
        ({"training_file": "file-none"}, None),
        ({"method": {"type": "reinforcement"}}, "method.reinforcement.grader"),
        ({"method": {"type": "reinforcement", "reinforcement": {"grader": {"type": "x"}}}}, None),
        ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo"),
        ({"hyperparameters": {"n_epochs": 0}}, None),
        ({"suffix": "a/b"}, None),
    ],
)
def test_wrong_fields_are_named_before_anything_is_stored(
    gateway: RunningGateway, fields: dict[str, Any], param: str | None
) -> None:
    api = client(gateway)
    asked = {"model": "base", "training_file": upload(api, [RECORD])} | fields
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        api.fine_tuning.jobs.create(**asked)
    assert param is None or caught.value.param == param
    assert list(api.fine_tuning.jobs.list()) == []


def test_a_file_needs_the_right_purpose_and_a_key_the_scope(gateway: RunningGateway) -> None:
    api = client(gateway)
    with pytest.raises(openai.BadRequestError, match="purpose 'batch'"):
        api.fine_tuning.jobs.create(model="base", training_file=upload(api, [RECORD], "batch"))
    without = client(gateway, "without", Rights(scopes=("files",)))
    with pytest.raises(openai.PermissionDeniedError):
        without.fine_tuning.jobs.list()


def test_jobs_of_the_own_api(gateway: RunningGateway, tmp_path: Path) -> None:
    api = client(gateway)
    file = upload(api, [RECORD])
    body = {
        "kind": "sft",
        "model": "base",
        "data": file,
        "settings": {"adapter": {"kind": "lora"}, "lr": 1e-3},
    }
    job = api.post("/jobs", body=body, cast_to=dict[str, Any])
    assert (job["state"], job["settings"]) == ("queued", {"adapter.kind": "lora", "lr": 1e-3})
    go_folder = tmp_path / "home" / "jobs" / ("ab" * 32)
    wait_until(lambda: api.get(f"/jobs/{job['id']}", cast_to=dict[str, Any])["state"] == "running")
    (go_folder / "go").touch()
    wait_until(lambda: api.get(f"/jobs/{job['id']}", cast_to=dict[str, Any])["state"] == "succeeded")
    shown = api.get("/jobs/" + "ab" * 32, cast_to=dict[str, Any])
    assert (shown["id"], shown["step"], shown["steps"]) == (job["id"], 2, 2)
    metrics = api.get(f"/jobs/{job['id']}/metrics?after=1", cast_to=dict[str, Any])
    assert [row["step"] for row in metrics["data"]] == [2]
    named = api.get(f"/jobs/{job['id']}/metrics?name=loss&name=reward", cast_to=dict[str, Any])
    assert named["data"] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    logs = api.get(f"/jobs/{job['id']}/logs", cast_to=str)
    assert logs.startswith("training on")
    events = api.get(f"/jobs/{job['id']}/events", cast_to=dict[str, Any])["data"]
    assert (events[0]["message"], events[-1]["message"]) == (
        "Job succeeded.",
        f"Job {job['id']} was submitted.",
    )

    (checkpoint,) = api.get(f"/jobs/{job['id']}/checkpoints", cast_to=dict[str, Any])["data"]
    assert checkpoint == {
        "step": 2,
        "model": "ab" * 32 + "@2",
        "metrics": {"loss": 0.5, "tokens": 7, "examples": 5},
    }

    def listed(query: str) -> list[str]:
        return [each["id"] for each in api.get(f"/jobs?{query}", cast_to=dict[str, Any])["data"]]

    assert listed("kind=sft&state=succeeded&state=failed") == [job["id"]]
    assert listed("kind=rl") == listed("state=running") == []
    inputs = tmp_path / "home" / "runs" / "inputs"
    assert len(list(inputs.iterdir())) == 1
    api.delete(f"/jobs/{job['id']}", cast_to=dict[str, Any])
    assert list(inputs.iterdir()) == []
    assert api.get("/jobs", cast_to=dict[str, Any])["data"] == []


def test_settings_of_a_kind_are_described(gateway: RunningGateway) -> None:
    api = client(gateway)

    def settings(kind: str) -> dict[str, dict[str, Any]]:
        found = api.get(f"/jobs/settings?kind={kind}", cast_to=dict[str, Any])["data"]
        assert all(each["description"] for each in found)
        return {each["name"]: each for each in found}

    sft = settings("sft")
    assert (sft["lr"]["type"], sft["lr"]["default"], sft["lr"]["minimum"]) == ("number", 3e-4, 0)
    assert sft["adapter.kind"]["choices"] == ["none", "lora", "tokenformer"]
    assert sft["epochs"]["default"] == 3
    assert not {"data", "model", "save_to", "preference.loss", "metrics.wandb"} & sft.keys()
    assert settings("preference")["lr"]["default"] == 1e-6
    assert "grpo" in settings("rl")["algorithm"]["choices"]
    with pytest.raises(openai.BadRequestError, match="kind"):
        settings("none")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"settings": {"lr": -1}}, "settings.lr"),
        ({"settings": {"learning": 1}}, None),
        ({"settings": {"save_to": "/tmp"}}, "settings.save_to"),
        ({"settings": {"data": "/etc/passwd"}}, "settings.data"),
        ({"kind": "rl", "task": "own_task.py:DOUBLE"}, "task"),
        ({"kind": "rl", "task": "add", "settings": {"engine": {"url": "http://x"}}}, "settings.engine.url"),
        ({"settings": {"save-to": "/tmp"}}, "settings.save-to"),
        ({"settings": {"lr=1e-3 --train.save_to": "/tmp"}}, None),
        ({"settings": {"evaluate": '{"data": "/etc/passwd"}'}}, "settings.evaluate"),
        ({"settings": {"offload_to": "/tmp"}}, "settings.offload_to"),
        ({"settings": {"adapter": {"targets": "a\0b"}}}, "settings.adapter.targets"),
        ({"kind": "rl", "task": "add", "settings": {"critic": {"model": "/etc"}}}, "settings.critic.model"),
        ({"resources": {"gpus": 1}}, "resources.gpus"),
        ({"name": "a/b"}, "name"),
        ({"data": "/etc/passwd"}, "data"),
        ({"data": None}, "data"),
        ({"task": "add"}, "task"),
    ],
)
def test_settings_of_the_own_api_are_checked(
    gateway: RunningGateway, fields: dict[str, Any], param: str | None
) -> None:
    api = client(gateway)
    body: dict[str, Any] = {"kind": "sft", "model": "base", "data": upload(api, [RECORD])} | fields
    if body["kind"] == "rl":
        body["data"] = None
    with pytest.raises(openai.BadRequestError) as caught:
        api.post("/jobs", body=body, cast_to=dict[str, Any])
    assert param is None or caught.value.param == param


def test_graders_are_validated_and_run(gateway: RunningGateway) -> None:
    api = client(gateway)
    grader: Any = {
        "type": "string_check",
        "name": "same",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    assert api.fine_tuning.alpha.graders.validate(grader=grader).grader is not None
    right = api.fine_tuning.alpha.graders.run(grader=grader, model_sample="4", item={"answer": "4"})
    assert (right.reward, right.metadata.name, right.metadata.errors.other_error) == (1.0, "same", False)
    assert (
        api.fine_tuning.alpha.graders.run(grader=grader, model_sample="5", item={"answer": "4"}).reward == 0
    )
    with pytest.raises(openai.BadRequestError, match="operation"):
        api.fine_tuning.alpha.graders.validate(grader=grader | {"operation": "same"})


@pytest.mark.parametrize(
    "grader",
    [
        {"type": "function", "function": "os:system"},
        {"type": "score_model", "model": "m", "input": [], "base_url": "http://10.0.0.1"},
        {
            "type": "multi",
            "calculate_output": "a",
            "graders": {"a": {"type": "function", "function": "os:system"}},
        },
        {"type": "python", "source": "", "packages": ["/etc"]},
    ],
)
def test_graders_of_requests_reach_no_code_file_or_host(
    gateway: RunningGateway, grader: dict[str, Any]
) -> None:
    api = client(gateway)
    with pytest.raises(openai.BadRequestError, match=r"cannot be set by a request|has a sandbox"):
        api.post("/fine_tuning/alpha/graders/validate", body={"grader": grader}, cast_to=dict[str, Any])
    file = upload(api, [{"prompt": "a", "answer": "b", "grader": grader}, {"prompt": "c", "answer": "d"}])
    body = {"kind": "rl", "model": "base", "task": file, "settings": {"grader": {"type": "match"}}}
    with pytest.raises(openai.BadRequestError, match="line 1"):
        api.post("/jobs", body=body, cast_to=dict[str, Any])
    body = {"kind": "rl", "model": "base", "task": "add", "settings": {"grader": grader}}
    with pytest.raises(openai.BadRequestError, match=r"cannot be set by a request|has a sandbox"):
        api.post("/jobs", body=body, cast_to=dict[str, Any])


def test_errors_of_records_name_the_uploaded_file_and_its_line(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    api = client(gateway)
    records = [json.dumps({"prompt": str(n), "answer": "b"}) for n in range(3)]
    lines = ("\n".join([records[0], "", *records[1:]]) + "\n").encode()
    file = api.files.create(file=("data.jsonl", lines), purpose="fine-tune").id
    grader: Any = {
        "type": "string_check",
        "name": "same",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    method: Any = {"type": "reinforcement", "reinforcement": {"grader": grader}}
    job = api.fine_tuning.jobs.create(model="base", training_file=file, validation_file=file, method=method)
    row = gateway.gateway.training.book.get(job.id).result()
    with pytest.raises(InvalidRequest, match="same prompt") as caught:
        read_task(row.spec.settings["task"], grader)
    error = {"message": caught.value.message, "param": caught.value.param, "code": None}
    shown = fine_tuning_job(replace(row, error_text=json.dumps(error)))["error"]
    assert (
        shown["message"] == f"validation_file {file}, line 1: the same prompt is in the split train already"
    )
    assert shown["param"] == "validation_file"
    wrong = "".join(json.dumps({"answer": "b", "prompt": prompt}) + "\n" for prompt in ("x", ""))
    file = api.files.create(file=("data.jsonl", b"\n" + wrong.encode()), purpose="fine-tune").id
    job = api.fine_tuning.jobs.create(model="base", training_file=file, method=method)
    row = gateway.gateway.training.book.get(job.id).result()
    with pytest.raises(InvalidRequest) as caught:
        read_task(row.spec.settings["task"], grader)
    text, field = with_files(row, caught.value.message)
    assert (text, field) == (f'training_file {file}, line 3: "prompt" must be text', "training_file")


def test_wandb_without_its_package_is_refused(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = client(gateway)
    file = upload(api, [RECORD])
    integrations: Any = [{"type": "wandb", "wandb": {"project": "facts"}}]
    monkeypatch.setattr(routes, "find_spec", lambda name: None)
    with pytest.raises(openai.BadRequestError, match=r"rondo-lab\[wandb\]") as caught:
        api.fine_tuning.jobs.create(model="base", training_file=file, integrations=integrations)
    assert caught.value.param == "integrations"
    monkeypatch.setattr(routes, "find_spec", lambda name: object())
    assert api.fine_tuning.jobs.create(
        model="base", training_file=file, integrations=integrations
    ).integrations
