"""`rondo batch`: the route of the first request, a repeated command after an interruption, results of any size."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import ConfigError, InvalidRequest, Overloaded, RondoError, Unauthorized, Unavailable
from rondo.cli.platform import batch
from rondo.client.http import Client
from rondo.client.platform import queue
from worker.running import worker_of

QUEUE = {"rest": 0.01, "longest_rest": 0.05, "attempts": 2, "sweep_every": 0.05}


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningGateway]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(batch, "POLL_SECONDS", 0.05)
    with ExitStack() as stack:
        stub = stack.enter_context(served(Stub()))
        running = stack.enter_context(gateway_of([stub.url], tmp_path, queue=QUEUE))
        monkeypatch.setenv("RONDO_BASE_URL", running.url)
        stack.enter_context(worker_of(running.url, stub.url))
        yield running


def requests(folder: Path, number: int = 3, before: str = "") -> Path:
    body = {"model": "m", "prompt": "ü"}
    lines = [
        json.dumps({"custom_id": str(place), "method": "POST", "url": "/v1/completions", "body": body})
        for place in range(number)
    ]
    file = folder / "requests.jsonl"
    file.write_text(before + "\n".join(lines))
    return file


def batches() -> list[dict[str, Any]]:
    with Client() as client:
        found: list[dict[str, Any]] = client.batch_page()["data"]
    return found


def test_blank_lines_before_the_first_request_are_skipped(
    gateway: RunningGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = requests(tmp_path, before="\n  \n")
    assert batch.run(["create", str(file), "--wait"]) == 0
    with Client() as client:
        uploaded = client.upload(file, "batch")["id"]
    assert batch.run(["create", uploaded, "--wait"]) == 0
    assert capsys.readouterr().out.count("is completed: 3 of 3") == 2


def test_a_file_without_requests_is_refused(gateway: RunningGateway, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    for text in ("", "\n\n", '{"custom_id": "a"}\n'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"requests\.jsonl is no request with a url"):
            batch.run(["create", str(file)])


def test_a_repeated_command_waits_for_the_same_batch(
    gateway: RunningGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = requests(tmp_path)

    def interrupted(self: Client, id: str) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Client, "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.run(["create", str(file), "--wait"])
    (made,) = batches()
    assert f"rondo batch cancel {made['id']}" in capsys.readouterr().err
    assert batch.run(["create", str(file), "--wait"]) == 0
    assert [each["id"] for each in batches()] == [made["id"]]
    assert batch.run(["create", str(file), "--wait"]) == 0
    assert len(batches()) == 2, "a command after the end begins another batch"


def test_lost_responses_neither_end_the_wait_nor_make_a_second_batch(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "FIRST_PAUSE", 0.01)
    real, lost = Client._send, set[str]()

    def losing(self: Client, method: str, path: str, **options: Any) -> httpx.Response:
        response = real(self, method, path, **options)
        if path.startswith("/v1/batches") and path not in lost:
            lost.add(path)
            raise Unavailable("the gateway restarts")
        return response

    with monkeypatch.context() as patch:
        patch.setattr(Client, "_send", losing)
        assert batch.run(["create", str(requests(tmp_path)), "--wait"]) == 0
    assert len(lost) == 2
    assert len(batches()) == 1


@pytest.mark.parametrize("error", [Overloaded("the quota is used"), Unauthorized("no key")], ids=repr)
def test_a_refusal_that_may_end_makes_no_second_batch(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RondoError
) -> None:
    file = requests(tmp_path)

    def interrupted(self: Client, id: str) -> dict[str, Any]:
        raise KeyboardInterrupt

    def refused(*arguments: Any, **options: Any) -> dict[str, Any]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Client, "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batch.run(["create", str(file), "--wait"])
    with monkeypatch.context() as patch:
        patch.setattr(Client, "create_batch", refused)
        with pytest.raises(type(error)):
            batch.run(["create", str(file), "--wait"])
    assert batch.run(["create", str(file), "--wait"]) == 0
    assert len(batches()) == 1


def test_the_lines_of_a_failed_batch_are_named(
    gateway: RunningGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = requests(tmp_path)
    good = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps(good) + "\n" + json.dumps(good | {"custom_id": "z", "method": "GET"}) + "\n")
    assert batch.run(["create", str(file), "--wait"]) == 1
    assert "line 2: method is POST, not 'GET'." in capsys.readouterr().out


def test_a_refused_batch_leaves_no_state(gateway: RunningGateway, tmp_path: Path) -> None:
    file = requests(tmp_path)
    with pytest.raises(InvalidRequest):
        batch.run(["create", str(file), "--wait", "--window", "soon"])
    assert not list((tmp_path / "home/batches").iterdir())


def test_the_route_of_an_uploaded_file_is_read_from_its_first_bytes(
    gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = requests(tmp_path, 3)
    with file.open("a") as opened:
        opened.write("\n" + " " * (8 << 20))
    with Client() as client:
        uploaded = client.upload(file, "batch")["id"]
    read: list[int] = []
    real = httpx.Response.iter_bytes

    def counted(self: httpx.Response, *arguments: Any) -> Iterator[bytes]:
        for data in real(self, *arguments):
            read.append(len(data))
            yield data

    monkeypatch.setattr(httpx.Response, "iter_bytes", counted)
    assert batch._Source(Client(), uploaded).endpoint() == "/v1/completions"
    assert 0 < sum(read) < 1 << 20


def test_results_are_written_as_they_arrive(
    gateway: RunningGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert batch.run(["create", str(requests(tmp_path)), "--wait"]) == 0
    id = batches()[0]["id"]
    out = tmp_path / "results.jsonl"
    assert batch.run(["results", id, "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 3
    capsys.readouterr()
    monkeypatch.setattr(Client, "file_pieces", one_byte_at_a_time(Client.file_pieces))
    assert batch.run(["results", id]) == 0
    assert capsys.readouterr().out == out.read_text()


def one_byte_at_a_time(real: Any) -> Any:
    """Pieces that end within a character."""

    def pieces(self: Client, id: str) -> Iterator[bytes]:
        for data in real(self, id):
            for place in range(len(data)):
                yield data[place : place + 1]

    return pieces


def test_a_download_that_breaks_off_leaves_the_local_file(tmp_path: Path) -> None:
    target = tmp_path / "facts.jsonl"
    target.write_text("before")
    sent = threading.Event()

    def broken() -> Iterator[bytes]:
        yield b"x" * 100
        sent.set()
        raise httpx.ReadError("of the test")

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=broken())

    with (
        Client("http://gateway", transport=httpx.MockTransport(respond)) as client,
        pytest.raises(Unavailable),
    ):
        client.download("file-1", target)
    assert sent.is_set()
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["facts.jsonl"]
