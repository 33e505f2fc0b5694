"""Names of jobs, and models by the names of jobs."""

import json
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobs.conftest import train_command
from rondo.base.errors import Conflict, InvalidRequest, NotFound
from rondo.cli.main import main
from rondo.jobs.folders import find_job, free_name, name_job
from rondo.jobs.job import Job
from rondo.models.store import name_of, resolve
from support.home import own_home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return tmp_path


def job(number: int, name: str = "") -> Job:
    return Job.of({"kind": "sft", "number": number}, name=name, model="m")


def test_a_job_is_found_by_name_hash_and_prefix() -> None:
    first = job(1, "first")
    assert find_job("first") == find_job(first.name) == find_job(first.name[:6]) == first.path
    assert job(1).label == "first", "the same specification is the same job"
    assert job(1, "other").path == first.path
    assert find_job("other") == first.path
    with pytest.raises(NotFound, match=r"Did you mean other\?"):
        find_job("othr")


def test_names_are_unique() -> None:
    first, second = job(1, "first"), job(2)
    with pytest.raises(Conflict, match=rf"Job {first.short} already has the name 'first'"):
        name_job(second.path, "first")
    with pytest.raises(Conflict):
        job(3, "first")
    assert [each.label for each in Job.all() if each.label == "first"] == ["first"]
    assert free_name("first", second.path) == "first-2"
    assert free_name("first", first.path) == "first"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "abcdef", "0" * 8])
def test_names_that_cannot_be_told_apart_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a job"):
        name_job(job(1).path, name)


def test_concurrent_namings_give_one_job_the_name() -> None:
    jobs, refused = [job(number) for number in range(8)], []

    def give(each: Job) -> None:
        try:
            name_job(each.path, "taken")
        except Conflict:
            refused.append(each)

    threads = [threading.Thread(target=give, args=(each,)) for each in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert find_job("taken") in {each.path for each in jobs}


def test_two_jobs_of_one_name_are_listed_in_the_error() -> None:
    first, second = job(1, "first"), job(2)
    second.path.joinpath("origin.json").write_text('{"name": "first"}')  # as a folder copied by hand
    with pytest.raises(InvalidRequest) as found:
        find_job("first")
    assert first.name in found.value.message
    assert second.name in found.value.message


def test_every_command_accepts_the_name(ground: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train_command(ground, 2), "--name", "tuned"]) == 0
    (made,) = Job.all()
    assert made.label == "tuned"
    assert resolve("tuned") == resolve(made.name) == resolve(made.short) == made.export
    assert name_of(made.export) == "tuned"
    for command in (
        ["job", "show", "tuned"],
        ["job", "metrics", "tuned"],
        ["job", "logs", "tuned"],
        ["model", "inspect", "tuned"],
        ["evaluate", "tuned", "--data", str(ground / "data.jsonl")],
        ["model", "export", "tuned", str(home / "out")],
        ["model", "cp", "tuned", "copy"],
    ):
        assert main(command) == 0, command
    capsys.readouterr()
    assert main(["model", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["copy"]["job"] == rows["tuned"]["job"] == "tuned"
    assert rows["copy"]["parent"] == str(ground / "model")
    assert main(["job", "rename", "tuned", "copy"]) == 5, "a model has this name"
    assert main(["model", "rename", "copy", "tuned"]) == 5, "a job has this name"
    assert main([*train_command(ground, 3), "--name", "tuned"]) == 5
    assert "already has the name 'tuned'" in capsys.readouterr().err


def test_a_served_job_has_its_name_and_keeps_its_hash(ground: Path) -> None:
    from rondo.engine.config import EngineConfig
    from rondo.server.config import ServerConfig
    from rondo.server.load import load_app

    assert main([*train_command(ground, 2), "--name", "tuned"]) == 0
    (made,) = Job.all()
    app, engine, name = load_app(made.short, EngineConfig(), ServerConfig())
    try:
        assert name == "tuned"
        with TestClient(app, base_url="http://localhost") as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "tuned"
            for accepted in ("tuned", made.name, made.short):
                body = {"model": accepted, "prompt": "the user", "max_tokens": 2}
                answer = client.post("/v1/completions", json=body)
                assert (answer.status_code, answer.json()["model"]) == (200, "tuned"), answer.text
        assert main(["job", "rm", "tuned", "--yes"]) == 5, "its model is in use"
    finally:
        engine.stop()


def test_a_model_with_the_name_of_a_job_is_ambiguous(home: Path) -> None:
    made = job(1, "both")
    for folder in (made.export, home / "models/both"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="ambiguous") as found:
        resolve("both")
    assert made.short in found.value.message
    assert str(home / "models/both") in found.value.message


def test_an_empty_text_is_no_name_of_an_unnamed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    folder = tmp_path / "jobs" / ("ab" * 32)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    with pytest.raises(NotFound, match="too short for a hash"):
        find_job("")


def test_a_gguf_model_has_its_name_for_itself(home: Path) -> None:
    (home / "models/taken").mkdir(parents=True)
    (home / "models/taken/file.gguf").write_bytes(b"GGUF")
    with pytest.raises(Conflict, match="A model has the name 'taken'"):
        job(1, "taken")
