"""Chat completions with `store: true`, with the client of OpenAI, in front of an engine that stores nothing."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.stub import RunningGateway, Stub, client_of, gateway_of, served
from rondo.base.errors import StorageError
from rondo.base.ids import new_id
from rondo.gateway.proxy.completions import completion_of

USER: Any = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]


class Engine(Stub):
    """Refuses fields of the store, as an engine does."""

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        named = request.headers.get("x-request-id", "")
        id = f"chatcmpl-{named}" if named.startswith("chosen") else new_id("chatcmpl")
        head = {"id": id, "created": 1, "model": body["model"]}
        if "store" in body or self.mode == "error":
            return JSONResponse({"error": {"message": "store is not supported"}}, status_code=400)
        if body.get("stream"):
            return StreamingResponse(self._chunks(head), media_type="text/event-stream")
        message = {"role": "assistant", "content": "ünï"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse(head | {"object": "chat.completion", "choices": choices})

    async def _chunks(self, head: dict[str, Any]) -> Any:
        for content, end in (("a data: [DONE] ", None), ("b", "stop")):
            choice = {"index": 0, "delta": {"content": content}, "finish_reason": end}
            chunk = head | {"object": "chat.completion.chunk", "choices": [choice]}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            if self.mode == "cut":
                raise ConnectionAbortedError("of the test")
        yield b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


@pytest.fixture(scope="module")
def engine() -> Iterator[Stub]:
    with served(Engine()) as stub:
        yield stub


@pytest.fixture(scope="module")
def gateway(engine: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway_of([engine.url], tmp_path_factory.mktemp("gateway"), keys="required") as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as client:
        yield client


def test_completions_are_listed_with_filters_and_pages(client: openai.OpenAI) -> None:
    chat = client.chat.completions
    made = [
        chat.create(model="m", messages=USER, store=True, metadata={"place": str(place % 2)})
        for place in range(5)
    ]
    chat.create(model="m", messages=USER)
    ids = [each.id for each in made]
    assert [each.id for each in chat.list(limit=2)] == ids
    assert [each.id for each in chat.list(limit=2, order="desc")] == ids[::-1]
    assert [each.id for each in chat.list(metadata={"place": "1"}, limit=1)] == [ids[1], ids[3]]
    assert chat.list(model="other").data == []
    with pytest.raises(openai.BadRequestError, match="'after'"):
        chat.list(after="unknown")


def test_a_completion_is_retrieved_updated_and_deleted(client: openai.OpenAI) -> None:
    chat = client.chat.completions
    made = chat.create(model="m", messages=[*USER, {"role": "user", "content": "two"}], store=True)
    assert chat.retrieve(made.id).choices[0].message.content == "ünï"
    messages = list(chat.messages.list(made.id, limit=1))
    assert [message.content for message in messages] == ["one", "two"]
    assert messages[0].content_parts is not None
    assert len({message.id for message in messages}) == 2
    assert chat.update(made.id, metadata={"k": "v"}).metadata == {"k": "v"}  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    assert chat.delete(made.id).deleted
    for again in (chat.retrieve, chat.delete, chat.messages.list):
        with pytest.raises(openai.NotFoundError, match="store: true"):
            again(made.id)


def test_a_completion_replaces_one_with_the_id_that_its_client_chose(client: openai.OpenAI) -> None:
    chosen = {"X-Request-Id": "chosen-1"}
    for number in "12":
        made = client.chat.completions.create(
            model="m", messages=USER, store=True, metadata={"number": number}, extra_headers=chosen
        )
    assert client.chat.completions.retrieve(made.id).metadata == {"number": "2"}  # type: ignore[attr-defined]


def test_completions_of_other_owners_are_unknown(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="m", messages=USER, store=True)
    with client_of(gateway) as other:
        assert other.chat.completions.list().data == []
        with pytest.raises(openai.NotFoundError):
            other.chat.completions.retrieve(made.id)


def test_the_asynchronous_client_streams_a_stored_completion(gateway: RunningGateway) -> None:
    _, text = gateway.gateway.keys.make("test").result()

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=text) as client:
            chat = client.chat.completions
            stream = await chat.create(model="m", messages=USER, store=True, stream=True)
            chunks = [chunk async for chunk in stream]
            (kept,) = [each async for each in chat.list(limit=1)]
            assert kept.id == chunks[0].id
            assert (kept.object, kept.choices[0].message.content) == ("chat.completion", "a data: [DONE] b")
            assert kept.usage is not None
            assert kept.usage.total_tokens == 5
            assert [each.content async for each in chat.messages.list(kept.id)] == ["one"]

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["error", "cut"])
def test_a_failed_completion_is_not_stored(client: openai.OpenAI, engine: Stub, mode: str) -> None:
    engine.mode = mode
    try:
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="m", messages=USER, store=True, stream=True))
    finally:
        engine.mode = "ok"
    assert client.chat.completions.list().data == []


def test_without_room_on_the_disk_the_client_gets_its_completion(
    gateway: RunningGateway, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(gateway.gateway.objects.completions, "keep", full)
    made = client.chat.completions.create(model="m", messages=USER, store=True)
    assert made.choices[0].message.content == "ünï"


def test_wrong_metadata_and_a_gateway_without_store_are_refused(
    client: openai.OpenAI, engine: Stub, tmp_path: Path
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=USER, store=True, metadata={"x": "y" * 513})
    assert refused.value.param == "metadata"
    with (
        gateway_of([engine.url], tmp_path, responses={"store": "never"}) as never,
        client_of(never) as other,
        pytest.raises(openai.BadRequestError, match="never") as refused,
    ):
        other.chat.completions.create(model="m", messages=USER, store=True)
    assert refused.value.param == "store"


def test_chunks_of_calls_and_log_probabilities_are_joined() -> None:
    def chunk(**part: Any) -> dict[str, Any]:
        return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, **part}]}

    begun = {"index": 0, "id": "call", "type": "function", "function": {"name": "f", "arguments": "{"}}
    more = {"index": 0, "function": {"arguments": "}"}}
    joined = completion_of(
        [
            chunk(delta={"role": "assistant", "tool_calls": [begun]}, logprobs={"content": [1]}),
            chunk(delta={"tool_calls": [more]}, logprobs={"content": [2]}, finish_reason="tool_calls"),
        ]
    )
    assert joined is not None
    (choice,) = joined["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["logprobs"] == {"content": [1, 2]}
    call = {"id": "call", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [call]}
