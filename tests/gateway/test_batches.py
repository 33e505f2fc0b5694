"""Batches with the client of OpenAI: results, invalid files, cancellation, expiry, and limits."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from gateway.queue_worker import echo, worker
from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.key import Rights
from rondo.control.store.check import problems
from support.disk import resize, small_disk
from support.waiting import wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("batches")
    with served(Stub(models=["m", "n"])) as stub, gateway_of([stub.url], folder, keys="required") as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as made:
        yield made


def client_of(gateway: RunningGateway, rights: Rights | None = None) -> openai.OpenAI:
    _, text = gateway.gateway.keys.make("test", rights or Rights()).result()
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key=text, max_retries=0)


def line(number: int, url: str = CHAT, model: str = "m", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": f"ü{number}"}]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body} | fields


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(
        (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines
    )


def begin(client: openai.OpenAI, lines: list[Any] | bytes, **options: Any) -> Any:
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    settings: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **options}
    return client.batches.create(input_file_id=file.id, **settings)


def ended(client: openai.OpenAI, id: str) -> Any:
    wait_until(lambda: client.batches.retrieve(id).status in ("completed", "failed", "expired", "cancelled"))
    return client.batches.retrieve(id)


def results(client: openai.OpenAI, id: str | None) -> list[dict[str, Any]]:
    return [] if id is None else [json.loads(each) for each in client.files.content(id).text.splitlines()]


def test_a_batch_from_file_to_results(gateway: RunningGateway, client: openai.OpenAI) -> None:
    with worker(gateway.store, ["m", "n"]):
        lines = [line(number, model="mn"[number % 2]) for number in range(1200)]
        made = begin(client, lines, metadata={"job": "nightly"})
        assert (made.status, made.metadata, made.endpoint) == ("validating", {"job": "nightly"}, CHAT)
        assert made.expires_at == made.created_at + 86400
        done = ended(client, made.id)
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 1200, "completed": 1200, "failed": 0}
    assert done.usage.total_tokens == 1200 * 5
    assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
    assert done.error_file_id is None
    output = results(client, done.output_file_id)
    assert [each["custom_id"] for each in output] == [each["custom_id"] for each in lines]
    assert [each["response"]["body"]["echo"] for each in output] == [each["body"] for each in lines]
    assert {each["response"]["status_code"] for each in output} == {200}
    assert len({each["id"] for each in output}) == 1200
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output"
    objects = gateway.gateway.objects
    wait_until(lambda: not list((objects.blobs.folder / "batches").iterdir()))
    assert gateway.store.read(problems).result() == []


def test_an_unexpected_error_does_not_end_the_task_that_drives_batches(
    gateway: RunningGateway, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()

    def broken() -> None:
        raised.set()
        raise ValueError("of the test")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.gateway.objects.batches, "running", broken)
        assert raised.wait(60)
    made = begin(client, [line(0)])
    wait_until(lambda: client.batches.retrieve(made.id).status == "in_progress")
    client.batches.cancel(made.id)
    assert ended(client, made.id).status == "cancelled"


def test_the_asynchronous_client_and_pages(gateway: RunningGateway) -> None:
    _, text = gateway.gateway.keys.make("test").result()

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=text) as client:
            file = await client.files.create(file=jsonl([line(1)]), purpose="batch")
            made = [
                await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
                for _ in range(5)
            ]
            ids = [each.id for each in made]
            assert [each.id async for each in client.batches.list(limit=2)] == ids[::-1]
            for each in ids:
                status = ""
                while status != "completed":
                    await asyncio.sleep(0.02)
                    status = (await client.batches.retrieve(each)).status

    with worker(gateway.store, ["m"]):
        asyncio.run(main())


@pytest.mark.parametrize("url", ["/v1/responses", "/v1/embeddings", "/v1/completions", "/v1/rerank"])
def test_each_model_route(gateway: RunningGateway, client: openai.OpenAI, url: str) -> None:
    with worker(gateway.store, ["m"]):
        done = ended(client, begin(client, [line(1, url)], endpoint=url).id)
    assert (done.status, done.request_counts.completed) == ("completed", 1)


def test_refused_requests_are_in_the_error_file(gateway: RunningGateway, client: openai.OpenAI) -> None:
    def answer(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        number = int(item["body"]["messages"][0]["content"][1:])
        return echo(item) if number % 3 else (400, {"error": {"message": "no such field", "number": number}})

    with worker(gateway.store, ["m"], answer):
        done = ended(client, begin(client, [line(number) for number in range(10)]).id)
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 10, "completed": 6, "failed": 4}
    assert len(results(client, done.output_file_id)) == 6
    errors = results(client, done.error_file_id)
    assert [each["custom_id"] for each in errors] == ["line-0", "line-3", "line-6", "line-9"]
    assert errors[1]["response"]["status_code"] == 400
    assert errors[1]["response"]["body"]["error"]["number"] == 3


def test_dead_letters_are_in_the_error_file_with_their_reason(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    from rondo.control.queue.leases import Leases
    from rondo.control.queue.work import Finished

    made = begin(client, [line(1)])
    leases = Leases(gateway.store)
    taken = asyncio.run(leases.poll("w", ["m"], 1, 60))
    leases.finish([Finished(taken[0].id, taken[0].lease, error="the engine crashed", again=False)]).result()
    done = ended(client, made.id)
    (error,) = results(client, done.error_file_id)
    assert error["response"] is None
    assert error["error"] == {"code": "request_failed", "message": "the engine crashed"}
    assert done.output_file_id is None


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[" * 5000, "invalid_json_line", None),
        (line(1, url="/v1/other"), "invalid_url", "url"),
        (line(1, url="/v1/embeddings"), "invalid_url", "url"),
        (line(1, method="GET"), "invalid_method", "method"),
        (line(1, custom_id=""), "invalid_type", "custom_id"),
        (line(1, custom_id=None), "missing_required_parameter", "custom_id"),
        (line(1, custom_id="x" * 600), "invalid_custom_id", "custom_id"),
        (line(0), "duplicate_custom_id", "custom_id"),
        (line(1, body=None), "missing_body", "body"),
        (line(1, body="x"), "missing_body", "body"),
        (line(1, body={}), "missing_required_parameter", "body.model"),
        (line(1, body={"model": 1}), "invalid_type", "body.model"),
        (line(1, body={"model": "m", "stream": True}), "stream_not_supported", "body.stream"),
        (line(1, body={"model": "m", "store": True}), "store_not_supported", "body.store"),
        (
            line(1, body={"model": "m", "store": False, "conversation": "conv_1"}),
            "conversation_not_supported",
            "body.conversation",
        ),
        (line(1, model="unknown"), "model_not_found", "body.model"),
    ],
)
def test_an_invalid_line_fails_the_batch_with_its_number(
    client: openai.OpenAI, bad: Any, code: str, param: str | None
) -> None:
    done = ended(client, begin(client, [line(0), b"", bad, line(2)]).id)
    assert (done.status, done.output_file_id, done.failed_at is not None) == ("failed", None, True)
    (error,) = done.errors.data
    assert (error.code, error.param, error.line) == (code, param, 3)
    assert done.request_counts.total == 0


def test_many_errors_are_bounded_and_an_empty_file_is_one(client: openai.OpenAI) -> None:
    assert len(ended(client, begin(client, b"x\n" * 1000).id).errors.data) == 100
    (error,) = ended(client, begin(client, b"\n\n").id).errors.data
    assert (error.code, error.line) == ("empty_file", None)


def test_limits_of_lines_and_batches(tmp_path: Path) -> None:
    limits = {"lines": 3, "line_bytes": 300, "owner_batches": 2, "poll_seconds": 0.05}
    with gateway_of([], tmp_path, batches=limits) as gateway, client_of(gateway, Rights("admin")) as client:
        four = ended(client, begin(client, [line(number) for number in range(4)]).id)
        assert four.errors.data[0].code == "too_many_tasks"
        long = ended(client, begin(client, [line(0), line(1, custom_id="x" * 400), line(2)]).id)
        assert [(each.code, each.line) for each in long.errors.data] == [("line_too_long", 2)]
        made = [begin(client, [line(1)]) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            begin(client, [line(1)])
        assert refused.value.code == "too_many_batches"
        client.batches.cancel(made[0].id)
        ended(client, made[0].id)
        begin(client, [line(1)])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"endpoint": "/v1/images/edits"}, "endpoint"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
        ({"extra_body": {"priority": 1}}, "priority"),
    ],
)
def test_a_wrong_batch_names_its_field(client: openai.OpenAI, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        begin(client, [line(1)], **changes)
    assert str(refused.value.param).startswith(param)


def test_the_input_file_must_exist_and_be_for_batches(gateway: RunningGateway, client: openai.OpenAI) -> None:
    other = client.files.create(file=jsonl([line(1)]), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=other.id, endpoint=CHAT, completion_window="24h")
    assert refused.value.code == "invalid_purpose"
    with client_of(gateway) as stranger:
        foreign = stranger.files.create(file=jsonl([line(1)]), purpose="batch")
    for id in (foreign.id, "file-none", "../../x"):
        with pytest.raises(openai.NotFoundError):
            client.batches.create(input_file_id=id, endpoint=CHAT, completion_window="24h")


def test_models_of_a_batch_are_those_of_the_key(gateway: RunningGateway) -> None:
    with client_of(gateway, Rights(models=("n",))) as client:
        done = ended(client, begin(client, [line(1)]).id)
    assert done.errors.data[0].code == "model_not_allowed"


def test_batches_of_other_owners_are_unknown_except_to_an_admin(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    made = begin(client, [line(1)])
    with client_of(gateway) as other, client_of(gateway, Rights("admin")) as admin:
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        assert not other.batches.list().data
        assert admin.batches.cancel(made.id).status == "cancelling"
    ended(client, made.id)


def test_the_same_idempotency_key_is_the_same_batch(client: openai.OpenAI) -> None:
    file = client.files.create(file=jsonl([line(1)]), purpose="batch")
    headers = {"Idempotency-Key": "k1"}
    made = [
        client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", extra_headers=headers
        )
        for _ in range(2)
    ]
    assert made[0].id == made[1].id
    with pytest.raises(openai.ConflictError):
        client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="1h", extra_headers=headers
        )
    client.batches.cancel(made[0].id)
    assert ended(client, made[0].id).status == "cancelled"


def test_a_deleted_input_file_does_not_stop_its_batch(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = begin(client, [line(number) for number in range(20)])
    client.files.delete(made.input_file_id)
    with worker(gateway.store, ["m"]):
        done = ended(client, made.id)
    assert (done.status, done.request_counts.completed) == ("completed", 20)


def test_a_cancelled_batch_has_the_results_until_then(gateway: RunningGateway, client: openai.OpenAI) -> None:
    half = threading.Event()

    def answer(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        number = int(item["body"]["messages"][0]["content"][1:])
        if number == 5:
            half.wait(60)
        return echo(item)

    made = begin(client, [line(number) for number in range(10)])
    with worker(gateway.store, ["m"], answer, at_a_time=1):
        wait_until(lambda: client.batches.retrieve(made.id).request_counts.completed == 5)
        assert client.batches.cancel(made.id).status == "cancelling"
        done = ended(client, made.id)
        half.set()
    assert (done.status, done.cancelled_at is not None) == ("cancelled", True)
    assert done.request_counts.model_dump() == {"total": 10, "completed": 5, "failed": 5}
    assert [each["custom_id"] for each in results(client, done.output_file_id)] == [
        f"line-{number}" for number in range(5)
    ]
    errors = results(client, done.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [
        (f"line-{number}", "batch_cancelled") for number in range(5, 10)
    ]
    assert client.batches.cancel(made.id).status == "cancelled"
    completed = next(each for each in client.batches.list() if each.status == "cancelled")
    assert completed.id == made.id


def test_an_expired_batch_has_the_results_until_then(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = begin(client, [line(number, model="mn"[number > 2]) for number in range(5)])
    with worker(gateway.store, ["m"]):
        wait_until(lambda: client.batches.retrieve(made.id).request_counts.completed == 3)
    text = sa.text("UPDATE batches SET expires = 1 WHERE id = :id")
    gateway.store.write(lambda db: db.execute(text, {"id": made.id})).result()
    done = ended(client, made.id)
    assert (done.status, done.expired_at is not None) == ("expired", True)
    assert len(results(client, done.output_file_id)) == 3
    assert {each["error"]["code"] for each in results(client, done.error_file_id)} == {"batch_expired"}
    with pytest.raises(openai.ConflictError, match="expired"):
        client.batches.cancel(made.id)


def test_requests_of_batches_come_after_those_of_the_generate_api(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    from rondo.control.queue.leases import Leases
    from rondo.control.queue.queue import Queue
    from rondo.control.queue.work import New

    made = begin(client, [line(number) for number in range(3)])
    queue = Queue(gateway.store)
    wait_until(lambda: queue.counts().result().get(("m", "queued")) == 3)
    queue.put([New("m", "interactive")]).result()
    taken = Leases(gateway.store).take("w", ["m"], 10).result()
    assert [each.body == "interactive" for each in taken] == [True, False, False, False]
    client.batches.cancel(made.id)
    assert ended(client, made.id).request_counts.failed == 3


def test_output_files_expire_as_the_batch_states(gateway: RunningGateway, client: openai.OpenAI) -> None:
    life: Any = {"anchor": "created_at", "seconds": 7200}
    with worker(gateway.store, ["m"]):
        done = ended(client, begin(client, [line(1)], output_expires_after=life).id)
    file = client.files.retrieve(done.output_file_id)
    assert file.expires_at == file.created_at + 7200


def test_scopes_of_files_and_batches_differ(gateway: RunningGateway) -> None:
    with (
        client_of(gateway, Rights(scopes=("files",))) as client,
        pytest.raises(openai.PermissionDeniedError, match="batches"),
    ):
        begin(client, [line(1)])
    response = httpx.get(gateway.url + "/v1/batches")
    assert response.status_code == 401


def test_on_a_full_disk_results_wait_until_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with (
        small_disk(disk, "2m"),
        gateway_of([], tmp_path, files={"folder": str(disk)}) as gateway,
        client_of(gateway) as client,
    ):
        long = {"model": "m", "messages": [{"role": "user", "content": "u" * 600}]}
        made = begin(client, [line(number, body=long) for number in range(1500)])
        with worker(gateway.store, ["m"], at_a_time=250) as answers:
            wait_until(lambda: len(answers) == 1500)
        wait_until(lambda: gateway.gateway.objects.batches.get(made.id, None).result().written > 0)
        assert client.batches.retrieve(made.id).status == "in_progress"
        resize(disk, "16m")
        done = ended(client, made.id)
        assert done.status == "completed"
        assert [each["custom_id"] for each in results(client, done.output_file_id)] == [
            f"line-{number}" for number in range(1500)
        ]
