"""Jobs submitted with the SDK and the command line: training data, programs of users, batches and files."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.queue_worker import worker
from gateway.stub import RunningGateway, gateway_of
from gateway.test_fine_tuning import PROGRAM
from rondo.base.errors import RondoError, Unauthorized
from rondo.cli.main import main
from rondo.client.http import Client
from rondo.client.platform.curves import curves_html
from rondo.control.jobs.launchers.local import LocalLauncher, command_of
from rondo.control.key import SCOPES, Rights
from rondo.jobs.spec import JobSpec
from support.waiting import wait_until

RECORD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SCRIPT = """
import os, resource, sys
print("ümlaut", sys.argv[1], open("data/facts.txt").read())
print("secrets:", sorted(name for name in os.environ if name.startswith(("HF_TOKEN", "WANDB_API", "AWS_SECRET"))))
print("limit:", resource.getrlimit(resource.RLIMIT_CPU)[0], os.getpgrp() == os.getsid(0))
print("key:", os.environ["RONDO_API_KEY"])
sys.exit(int(sys.argv[1]))
"""


@dataclass
class Place:
    gateway: RunningGateway
    folder: Path

    def key(self, rights: Rights | None = None) -> tuple[str, str]:
        made, text = self.gateway.gateway.keys.make("test", rights or Rights()).result()
        return made.id, text

    def client(self, rights: Rights | None = None) -> Client:
        return Client(self.gateway.url, self.key(rights)[1])

    def go(self) -> None:
        (self.folder / "home" / "jobs" / ("ab" * 32) / "go").touch()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A gateway whose training jobs run a stand-in, and whose programs run."""
    folder: Path = tmp_path_factory.mktemp("submitted")
    (folder / "program.py").write_text(PROGRAM)

    def command(spec: JobSpec) -> list[str]:
        if spec.kind == "script":
            return command_of(spec)
        return [sys.executable, "-S", str(folder / "program.py"), json.dumps(dict(spec.settings))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        patch.setenv("HF_TOKEN", "hf-secret")
        patch.setenv("WANDB_API_KEY", "wandb-secret")
        patch.chdir(folder)
        jobs = {
            "poll_seconds": 0.05,
            "grace_seconds": 5.0,
            "gateway_url": "http://127.0.0.1:9",
            "code_cpu_seconds": 77,
        }
        with gateway_of([], folder, keys="required", jobs=jobs) as running:
            launcher = next(iter(running.gateway.training.launchers.values()))
            assert isinstance(launcher, LocalLauncher)
            launcher.command = command
            yield Place(running, folder)


def test_a_job_of_the_sdk(place: Place) -> None:
    (place.folder / "facts.json").write_text(json.dumps([RECORD]))
    with place.client() as client:
        job = client.train("base", "facts.json", settings={"lr": 1e-3, "adapter.kind": "lora"})
        assert (job.state, job.facts["settings"]) == ("queued", {"lr": 1e-3, "adapter.kind": "lora"})
        wait_until(lambda: job.refresh().state == "running")
        with pytest.raises(TimeoutError, match="is running"):
            job.wait(0.01)
        place.go()
        assert job.wait(60).hash == "ab" * 32
        assert [row["loss"] for row in job.metrics()] == [1, 0.5]
        page = job._repr_html_()
        assert "<svg" in page
        assert "loss 0.5" in page
        assert "step 2 of 2" in page
        assert "".join(job.logs(follow=True)).startswith("training on")
        assert [each.id for each in client.jobs()] == [job.id]
        assert client.job("ab" * 32).id == job.id
        job.delete()
        assert client.jobs() == []
        with pytest.raises(RondoError, match=r"no file missing\.jsonl"):
            client.train("base", "missing.jsonl")


def test_a_program_runs_with_limits_and_without_secrets(place: Place) -> None:
    (place.folder / "my.py").write_text(SCRIPT)
    (place.folder / "facts.txt").write_text("Zorb is red")
    files = {"my.py": "my.py", "data/facts.txt": "facts.txt"}
    with place.client() as client, pytest.raises(RondoError, match="may not use code"):
        client.run_script(["python", "my.py", "0"], files)
    rights = Rights(scopes=(*SCOPES, "code"))
    id, text = place.key(rights)
    with Client(place.gateway.url, text) as client:
        job = client.run_script(["python", "my.py", "0"], files)
        said = "".join(job.logs(follow=True))
        assert job.wait(60).state == "succeeded"
        assert "ümlaut 0 Zorb is red" in said
        assert "secrets: []" in said
        assert "limit: 77 True" in said
        key = said.partition("key: ")[2].split()[0]
        with pytest.raises(Unauthorized):  # it ended with the job
            place.gateway.gateway.keys.find(key).result()
        failed = client.run_script(["python", "my.py", "5"], files)
        with pytest.raises(RondoError, match=r"exited with code 5|code 5|Attempt 1 failed"):
            failed.wait(60)
        assert failed.facts["attempt"] == 1
        with pytest.raises(RondoError, match="no relative path"):
            client.run_script(["python", "my.py"], {"../my.py": "my.py"})
        place.gateway.gateway.training.config.jobs.secret_keys.append(id)
        trusted = client.run_script(["python", "my.py", "00"], files)
        assert "secrets: ['HF_TOKEN', 'WANDB_API_KEY']" in "".join(trusted.logs(follow=True))


def test_a_key_of_a_job_acts_for_its_owner(place: Place) -> None:
    keys = place.gateway.gateway.keys
    owner, _ = place.key(Rights("admin", models=("m",)))
    key = keys.find(keys.delegate(owner, "job x").result()).result()
    assert (key.id, key.rights.role, key.rights.scopes, key.rights.models) == (
        owner,
        "user",
        ("inference",),
        ("m",),
    )
    text = keys.delegate(owner, "job x").result()
    assert "job x" not in [each.name for each in keys.all().result()]
    keys.revoke(owner).result()
    with pytest.raises(Unauthorized, match="revoked"):
        keys.find(text).result()


def test_the_command_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place.folder / "hello.py").write_text("print('hello from a job')")
    (place.folder / "chat.jsonl").write_text(json.dumps(RECORD) + "\n")
    monkeypatch.setenv("RONDO_BASE_URL", place.gateway.url)
    monkeypatch.setenv("RONDO_API_KEY", place.key(Rights(scopes=(*SCOPES, "code")))[1])

    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    assert "hello from a job" in said("job", "submit", "--wait", "--", "python", "hello.py")
    go = place.folder / "home" / "jobs" / ("ab" * 32) / "go"
    go.unlink(missing_ok=True)  # the next job does not end by itself
    shown = said(
        "train",
        "sft",
        "--submit",
        "--model=base",
        "--data=chat.jsonl",
        "--lora",
        "--lr",
        "2e-4",
        "--steps",
        "90000",
    )
    id = shown.split()[1]
    assert f"rondo job logs -f {id}" in shown
    listed = json.loads(said("job", "list", "--remote", "--json"))
    assert [(each["id"], each["kind"]) for each in listed][:1] == [(id, "sft")]
    assert listed[0]["settings"] == {"lr": 2e-4, "steps": 90000, "adapter.kind": "lora"}
    assert "base" in said("job", "show", id)
    assert f"job {id} is paus" in said("job", "pause", id)
    assert "cancelled" in said("job", "cancel", id)
    wait_until(lambda: main(["job", "delete", id]) == 0)
    capsys.readouterr()

    file = said("file", "upload", "chat.jsonl").split()[0]
    assert file in said("file", "list")
    assert "copy.jsonl" in said("file", "download", file, "--out", "copy.jsonl")
    assert Path("copy.jsonl").read_bytes() == Path("chat.jsonl").read_bytes()
    assert "deleted" in said("file", "rm", file)


def test_a_batch_of_the_command_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": []},
    }
    Path("requests.jsonl").write_text(json.dumps(line) + "\n")
    monkeypatch.setenv("RONDO_BASE_URL", place.gateway.url)
    monkeypatch.setenv("RONDO_API_KEY", place.key()[1])
    with worker(place.gateway.store, ["m"]):
        assert main(["batch", "create", "requests.jsonl", "--wait"]) == 0
    id = capsys.readouterr().out.split()[1]
    assert main(["batch", "results", id, "--out", "results.jsonl"]) == 0
    assert json.loads(Path("results.jsonl").read_text())["custom_id"] == "1"
    assert main(["batch", "list"]) == main(["batch", "show", id]) == 0
    assert id in capsys.readouterr().out
    assert main(["batch", "cancel", id]) != 0  # it has ended


def test_result_files_and_permissions_of_a_fine_tuned_model(place: Place) -> None:
    _, text = place.key(Rights("admin"))
    api = openai.OpenAI(base_url=place.gateway.url + "/v1", api_key=text, max_retries=0)
    file = api.files.create(file=("a.jsonl", json.dumps(RECORD).encode()), purpose="fine-tune")
    job = api.fine_tuning.jobs.create(model="base", training_file=file.id)
    wait_until(lambda: api.fine_tuning.jobs.retrieve(job.id).status in ("running", "succeeded"))
    place.go()
    wait_until(lambda: api.fine_tuning.jobs.retrieve(job.id).status == "succeeded")
    done = api.fine_tuning.jobs.retrieve(job.id)
    (result,) = done.result_files
    assert api.files.content(result).text == "step,train_loss\n1,1.0\n2,0.5\n"
    model = str(done.fine_tuned_model)
    limited, _ = place.key(Rights(models=("m",)))
    (made,) = api.fine_tuning.checkpoints.permissions.create(model, project_ids=[limited])
    assert made.project_id == limited
    assert place.gateway.gateway.keys.get(limited).result().rights.models == ("m", model)
    (listed,) = api.fine_tuning.checkpoints.permissions.list(model).data
    assert api.fine_tuning.checkpoints.permissions.delete(
        listed.id, fine_tuned_model_checkpoint=model
    ).deleted
    assert place.gateway.gateway.keys.get(limited).result().rights.models == ("m",)
    with pytest.raises(openai.ConflictError, match="every model already"):
        api.fine_tuning.checkpoints.permissions.create(model, project_ids=[place.key()[0]])


def test_curves_of_a_failed_job_are_escaped() -> None:
    facts: dict[str, Any] = {"id": "job-1", "kind": "rl", "model": "<m>", "state": "failed", "step": None}
    page = curves_html(
        {**facts, "steps": None, "error": {"message": "<b>"}}, [{"step": 1, "reward": float("nan")}]
    )
    assert "&lt;b&gt;" in page
    assert "&lt;m&gt;" in page
    assert "<svg" not in page
