"""Examples of the verbs of the service: each parses, and those with a gateway run against a small one."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.test_examples import ELSEWHERE, REMOTE
from gateway.stub import Stub, gateway_of, served
from gateway.test_registry import JOB, OLD, write_job
from rondo.cli.completion.candidates import parsers
from rondo.cli.main import main
from rondo.cli.options.examples import EXAMPLES
from rondo.cli.options.short import read_settings
from rondo.supervisor.control import ControlEndpoint
from support.on_demand import FakeFleet
from support.waiting import wait_until
from worker.running import worker_of

NAMES = [name for name in EXAMPLES if name.split()[1] in ELSEWHERE or name in REMOTE]
QUEUE = {"rest": 0.01, "longest_rest": 0.05, "attempts": 2, "sweep_every": 0.05}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_arguments_that_its_verb_takes(name: str) -> None:
    parser = dict(parsers(name.split()[1]))[name]
    argv = shlex.split(EXAMPLES[name])[len(name.split()) :]
    if parser.scope is not None:
        command = read_settings(parser, argv)
        assert command is not None
        argv = command.rest
    parser.parse_args(argv)


@pytest.fixture
def gateway(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ExitStack() as stack:
        stub = stack.enter_context(served(Stub(models=["demo"])))
        running = stack.enter_context(gateway_of([stub.url], folder, queue=QUEUE))
        monkeypatch.setenv("RONDO_BASE_URL", running.url)
        stack.enter_context(worker_of(running.url, stub.url))
        yield


def output(capsys: pytest.CaptureFixture[str], name: str, word: str = "", id: str = "") -> str:
    """Output of an example with an id in the place of its word."""
    assert word in EXAMPLES[name]
    command = re.sub(rf"{re.escape(word)}\b", id, EXAMPLES[name]) if word else EXAMPLES[name]
    capsys.readouterr()
    assert main(shlex.split(command)[1:]) == 0, name
    return capsys.readouterr().out


def test_files(gateway: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "chat.jsonl").write_text('{"prompt": "a"}\n')
    id = output(capsys, "rondo file upload").split()[0]
    assert id in output(capsys, "rondo file list")
    (folder / "chat.jsonl").unlink()
    output(capsys, "rondo file download", "ID", id)
    assert (folder / "chat.jsonl").read_text() == '{"prompt": "a"}\n'
    assert output(capsys, "rondo file rm", "ID", id) == f"{id} is deleted\n"


def test_batches(gateway: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "demo", "prompt": "a"}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (folder / "requests.jsonl").write_text(json.dumps(line) + "\n")
    id = output(capsys, "rondo batch create").split()[1]
    assert id in output(capsys, "rondo batch list")
    assert json.loads(output(capsys, "rondo batch show", "ID", id))["status"] == "completed"
    output(capsys, "rondo batch results", "ID", id)
    assert json.loads((folder / "results.jsonl").read_text())["custom_id"] == "1"
    assert main(["batch", "cancel", id]) == 5
    assert "is completed and cannot be cancelled" in capsys.readouterr().err


def test_the_queue(gateway: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "chat.jsonl").write_text('{"prompt": "a"}\n')
    assert "1 responses in answers.jsonl" in output(capsys, "rondo generate")
    shown = output(capsys, "rondo queue list")
    (group,) = {line.split()[0] for line in shown.splitlines() if "1 of 1" in line}
    assert "done" in output(capsys, "rondo queue show", "GROUP", group)
    assert output(capsys, "rondo queue cancel", "GROUP", group) == "0 requests are cancelled.\n"
    assert output(capsys, "rondo queue retry", "GROUP", group) == "0 requests are in the queue again.\n"
    assert output(capsys, "rondo queue clear") == "0 requests are cancelled.\n"


@pytest.fixture
def registry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = folder / "home"
    write_job(home, OLD, "reader-old")
    write_job(home, JOB, "reader", 200)
    fleet = FakeFleet(home / "engines", {"base": 60}, 100, restart_seconds=0.05)
    control = ControlEndpoint()
    control.begin(fleet.on_demand)
    with gateway_of([], folder, supervisor=control.url, supervisor_key=control.key) as running:
        monkeypatch.setenv("RONDO_BASE_URL", running.url)
        yield
    control.close()
    fleet.on_demand.stop()


def test_the_registry(registry: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until(lambda: "reader-old" in output(capsys, "rondo registry list"))
    assert json.loads(output(capsys, "rondo registry show"))["id"] in (JOB, OLD)
    assert main(["registry", "import", JOB, "--step", "200"]) == 0
    promoted = output(capsys, "rondo registry promote", "HASH@200", f"{JOB}@200")
    assert promoted == f"reader stands for {JOB}@200\n"
    assert main(["registry", "promote", JOB]) == 0
    assert output(capsys, "rondo registry rollback") == f"reader stands for {JOB}@200\n"
    assert output(capsys, "rondo registry alias", "HASH", JOB) == f"production stands for {JOB}\n"
    assert output(capsys, "rondo registry load", "HASH", JOB) == f"{JOB} is loaded\n"
    assert output(capsys, "rondo registry unload", "HASH", JOB) == f"{JOB} is unloaded\n"
    assert output(capsys, "rondo registry rm", "HASH@100", OLD) == f"{OLD} is removed from the registry\n"
    (folder / "whole").mkdir()
    (folder / "whole/config.json").write_text("{}")
    imported = output(capsys, "rondo registry import", "s3://models/reader", "./whole")
    assert imported.startswith("reader is registered as ")
