"""`rondo generate`: results in order, resume after an interruption, retries of dead letters."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import Conflict, InvalidRequest, NotFound, Overloaded, RondoError
from rondo.cli.platform import generate, generation, queue
from rondo.client.http import Client
from rondo.control.key import Rights
from support.waiting import wait_until
from worker.running import worker_of

QUEUE = {"rest": 0.01, "longest_rest": 0.05, "attempts": 2, "sweep_every": 0.05}


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningGateway, Stub]]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(generation, "AT_A_TIME", 50)
    with ExitStack() as stack:
        stub = stack.enter_context(served(Stub()))
        gateway = stack.enter_context(gateway_of([stub.url], tmp_path, queue=QUEUE))
        monkeypatch.setenv("RONDO_BASE_URL", gateway.url)
        stack.enter_context(worker_of(gateway.url, stub.url))
        yield gateway, stub


def prompts(folder: Path, lines: list[Any]) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def results(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_of_each_form_are_answered_in_order(setup, tmp_path: Path) -> None:
    _, stub = setup
    batch = {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [], "top_p": 0.5},
    }
    lines = ["a", {"prompt": "b", "max_tokens": 3}, {"messages": [{"role": "user", "content": "c"}]}, batch]
    lines += [str(place) for place in range(200)]
    file, out = prompts(tmp_path, lines), tmp_path / "out.jsonl"
    assert generate.run([str(file), "--out", str(out), "--options", '{"seed": 7}', "--full"]) == 0
    found = results(out)
    assert [line["place"] for line in found] == list(range(204))
    assert {line["response"] for line in found} <= {"ünï"}
    assert found[3]["custom_id"] == "x"
    assert found[0]["body"]["usage"]["total_tokens"] == 5
    sent = [each["body"] for each in stub.requests if each["body"].get("prompt") in ("a", "b")]
    assert [(body["seed"], body["max_tokens"]) for body in sorted(sent, key=str)] == [(7, 16), (7, 3)] or sent
    assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]


def test_an_interrupted_run_goes_on_where_it_was(
    setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stub = setup
    file, out = prompts(tmp_path, [str(place) for place in range(180)]), tmp_path / "out.jsonl"
    real, calls = generation.Generation._extend, []

    def interrupted(self: generation.Generation, *arguments: Any, **options: Any) -> dict[str, Any]:
        calls.append(arguments)
        if len(calls) == 2:
            real(self, *arguments, **options)
            raise KeyboardInterrupt  # its answer is lost
        return real(self, *arguments, **options)

    monkeypatch.setattr(generation.Generation, "_extend", interrupted)
    assert generate.run([str(file), "--out", str(out)]) == 130
    (tmp_path / "others").mkdir()
    other = prompts(tmp_path / "others", ["other"])
    with pytest.raises(Conflict, match="is of an interrupted run"):
        generate.run([str(other), "--out", str(out)])
    monkeypatch.setattr(generation, "PAGE", 40)
    fetched = generation.Generation._shown

    def broken(self: generation.Generation, each: Any, name: Any) -> dict[str, Any]:
        if each["place"] == 100:
            raise KeyboardInterrupt
        return fetched(self, each, name)

    monkeypatch.setattr(generation.Generation, "_shown", broken)
    assert generate.run([str(file), "--out", str(out)]) == 130
    monkeypatch.setattr(generation.Generation, "_shown", fetched)
    with (tmp_path / "out.jsonl.part").open("a") as part:
        part.write('{"place": 80, "resp')  # cut off by kill -9
    assert generate.run([str(file), "--out", str(out)]) == 0
    assert [line["place"] for line in results(out)] == list(range(180))
    assert sorted(int(each["body"]["prompt"]) for each in stub.requests) == list(range(180)), (
        "each is sent once"
    )


def test_dead_letters_are_attempted_again_and_then_reported(setup, tmp_path: Path) -> None:
    _, stub = setup
    stub.mode = "error"
    file, out = prompts(tmp_path, ["a", "b"]), tmp_path / "out.jsonl"
    assert generate.run([str(file), "--out", str(out), "--retries", "2"]) == 1
    assert len(stub.requests) == 6
    assert [line["error"]["body"]["error"]["message"] for line in results(out)] == ["no such field"] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"x": 1}', "a prompt is a text"),
        ("{", "not JSON"),
        ("\\xff", "not JSON"),
        ('{"body": {}}', "requests to None cannot be queued"),
        ('{"prompt": "a", "model": 1}', "the field model is a text"),
    ],
)
@pytest.mark.parametrize("place", [0, 120])
def test_a_wrong_line_is_named_before_any_prompt_is_queued(
    setup, tmp_path: Path, line: str, message: str, place: int
) -> None:
    gateway, _ = setup
    file = tmp_path / "prompts.jsonl"
    wrong = b"\xff" if line.startswith("\\x") else line.encode()
    file.write_bytes(b"\n".join([b'"a"'] * place + [wrong] + [b'"b"'] * 20))
    with pytest.raises(InvalidRequest, match=rf"prompts\.jsonl, line {place + 1}: {message}"):
        generate.run([str(file)])
    assert gateway.gateway.queue.queue.groups().result() == []
    assert [path.name for path in tmp_path.glob("prompts*")] == ["prompts.jsonl"]


def test_a_file_without_prompts_is_refused(setup, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n\n")
    with pytest.raises(InvalidRequest, match=r"prompts\.jsonl has no prompts"):
        generate.run([str(file)])


@pytest.mark.parametrize("place", [0, 120])
def test_a_refused_submission_is_cancelled_and_can_be_corrected(setup, tmp_path: Path, place: int) -> None:
    gateway, _ = setup
    lines: list[Any] = [str(number) for number in range(150)]
    lines[place] = {"prompt": "x", "model": "absent"}
    with pytest.raises(NotFound, match="'absent' does not exist") as caught:
        generate.run([str(prompts(tmp_path, lines))])
    groups = gateway.gateway.queue.queue.groups().result()
    assert [group.name for group in groups if group.name in caught.value.message] == [
        group.name for group in groups
    ]
    assert len(groups) == bool(place)
    assert all(group.ended for group in groups)
    lines[place] = "x"
    assert generate.run([str(prompts(tmp_path, lines))]) == 0


@pytest.mark.parametrize(
    "error", [Overloaded("the quota is used"), Conflict("another command submits the group")], ids=repr
)
def test_a_submission_that_may_be_repeated_goes_on(
    setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: RondoError,
) -> None:
    gateway, _ = setup
    real = generation.Generation._extend

    def refused(*arguments: Any, **options: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(generation.Generation, "_extend", refused)
    file = prompts(tmp_path, [str(place) for place in range(80)])
    with pytest.raises(type(error)):
        generate.run([str(file)])
    (group,) = gateway.gateway.queue.queue.groups().result()
    assert f"rondo queue cancel {group.name}" in capsys.readouterr().err
    monkeypatch.setattr(generation.Generation, "_extend", real)
    longer = prompts(tmp_path, [str(place) for place in range(81)])
    with pytest.raises(Conflict, match=f"`rondo queue cancel {group.name}`"):
        generate.run([str(longer)])
    assert generate.run([str(prompts(tmp_path, [str(place) for place in range(80)]))]) == 0
    assert len(gateway.gateway.queue.queue.groups().result()) == 1


def test_a_gateway_without_models_needs_the_name_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    with gateway_of([], tmp_path, queue=QUEUE) as gateway:
        monkeypatch.setenv("RONDO_BASE_URL", gateway.url)
        with pytest.raises(NotFound, match=r"line 1: no model is named, .* set --model"):
            generate.run([str(prompts(tmp_path, ["a"]))])
        assert not (tmp_path / "prompts.results.jsonl.state").exists()


def test_the_queue_is_listed_and_dead_letters_retried(
    setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, stub = setup
    stub.mode = "error"
    file = prompts(tmp_path, ["a"])
    generate.run([str(file), "--retries", "0"])
    capsys.readouterr()
    assert queue.run(["list"]) == 0
    shown = capsys.readouterr().out
    assert "dead letters" in shown
    assert "no such field" in shown
    group = gateway.gateway.queue.queue.groups().result()[0].name
    queue.run(["show", group])
    assert "dead" in capsys.readouterr().out
    stub.mode = "ok"
    queue.run(["retry", group])
    assert capsys.readouterr().out == "1 requests are in the queue again.\n"
    wait_until(lambda: gateway.gateway.queue.queue.group(group).result().ended)
    queue.run(["show", f"{group}_000000000"])
    assert json.loads(capsys.readouterr().out)["state"] == "done"
    queue.run(["clear"])
    assert capsys.readouterr().out == "0 requests are cancelled.\n"


def test_owners_are_shown_by_the_names_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    with gateway_of([], tmp_path, queue=QUEUE, keys="required") as gateway:
        monkeypatch.setenv("RONDO_BASE_URL", gateway.url)
        keys = {}
        for name, rights in (("laptop", Rights()), ("operator", Rights("admin"))):
            key, text = gateway.gateway.keys.make(name, rights).result()
            keys[name] = key.id, text
        item = {"path": "/v1/completions", "body": {"model": "m", "prompt": "a"}}
        with Client(gateway.url, keys["laptop"][1]) as client:
            group = client.submit([item])["id"]
        for name in keys:
            for words in (["list"], ["show", group]):
                assert queue.run([*words, "--key", keys[name][1]]) == 0
                (row,) = [
                    line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{group} ")
                ]
                assert row.split()[1] == "laptop"
