"""Conversations and lists of items with the client of OpenAI."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from gateway.responses.engine import Engine
from gateway.stub import RunningGateway, client_of
from rondo.control.key import Rights


def test_a_conversation_collects_input_and_output(client: openai.OpenAI, engine: Engine) -> None:
    conversation = client.conversations.create(
        items=[{"role": "user", "content": "zero", "type": "message"}], metadata={"topic": "x"}
    )
    assert conversation.metadata == {"topic": "x"}
    first = client.responses.create(model="m", input="one", conversation=conversation.id)
    assert first.output_text == "2: one"
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    with client.responses.stream(model="m", input="two", conversation={"id": conversation.id}) as stream:
        assert stream.get_final_response().output_text == "4: two"
    client.responses.create(model="m", input="three", conversation=conversation.id, store=False)
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
    assert texts == ["zero", "one", "2: one", "two", "4: two", "three", "6: three"]
    assert [item.id for item in client.conversations.items.list(conversation.id, limit=3)] == [
        item.id for item in items[::-1]
    ]
    assert len(engine.bodies[-1]["input"]) == 6


def test_items_of_a_conversation_are_added_retrieved_and_deleted(client: openai.OpenAI) -> None:
    id = client.conversations.create().id
    call: Any = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    added = client.conversations.items.create(
        id, items=[call, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    )
    assert [item.type for item in added.data] == ["function_call", "message", "message"]
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[2].id)
    one = client.conversations.items.retrieve(str(added.data[1].id), conversation_id=id)
    assert one == added.data[1]
    assert client.conversations.items.delete(str(one.id), conversation_id=id).id == id
    for again in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError):
            again(str(one.id), conversation_id=id)
    with pytest.raises(openai.ConflictError):
        client.conversations.items.create(id, items=[call | {"id": added.data[0].id}])
    with pytest.raises(openai.BadRequestError):
        client.conversations.items.create(id, items=[call] * 21)
    assert client.conversations.update(id, metadata={"k": "v"}).metadata == {"k": "v"}
    assert client.conversations.delete(id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(id)


def test_tokens_are_counted_with_the_context(client: openai.OpenAI) -> None:
    made = client.responses.create(model="m", input="one")
    counted = client.responses.input_tokens.count(model="m", input="two", previous_response_id=made.id)
    assert counted.input_tokens == 3


def test_pages_of_input_items(client: openai.OpenAI) -> None:
    many: Any = [{"role": "user", "content": str(number)} for number in range(7)]
    made = client.responses.create(model="m", input=many)
    for order in ("asc", "desc"):
        items = list(client.responses.input_items.list(made.id, limit=2, order=order))  # type: ignore[arg-type]
        texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
        assert texts == sorted(texts, reverse=order == "desc")
        assert len(texts) == 7


def test_responses_and_conversations_of_other_owners_are_unknown(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    made, conversation = client.responses.create(model="m", input="one"), client.conversations.create()
    with client_of(gateway) as other, client_of(gateway, Rights("admin")) as admin:
        for call in (
            other.responses.retrieve,
            other.responses.delete,
            other.responses.cancel,
            other.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        for call in (
            other.conversations.retrieve,
            other.conversations.delete,
            other.conversations.items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                call(conversation.id)
        with pytest.raises(openai.BadRequestError):
            other.responses.create(model="m", input="two", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model="m", input="two", conversation=conversation.id)
        assert admin.responses.retrieve(made.id).id == made.id


def test_the_asynchronous_client(gateway: RunningGateway) -> None:
    _, text = gateway.gateway.keys.make("test").result()

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=text) as client:
            conversation = await client.conversations.create()
            await client.responses.create(model="m", input="one", conversation=conversation.id)
            async with client.responses.stream(
                model="m", input="two", conversation=conversation.id
            ) as stream:
                final = await stream.get_final_response()
            assert final.output_text == "3: two"
            assert (
                len([each async for each in client.conversations.items.list(conversation.id, limit=1)]) == 4
            )
            assert (await client.responses.retrieve(final.id)).output_text == "3: two"
            await client.responses.delete(final.id)

    asyncio.run(main())


def test_pages_of_stored_responses(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = [client.responses.create(model="m", input=text).id for text in ("one", "two", "three")]
    headers, url = {"Authorization": f"Bearer {client.api_key}"}, f"{gateway.url}/v1/responses"
    first = httpx.get(url, params={"limit": 2}, headers=headers, timeout=60).json()
    assert ([each["id"] for each in first["data"]], first["has_more"]) == (made[:0:-1], True)
    assert [each["input"] for each in first["data"]] == ["three", "two"]
    second = httpx.get(url, params={"limit": 1, "after": made[1]}, headers=headers, timeout=60).json()
    assert second["data"][0]["id"] == made[0]
    assert httpx.get(url, params={"after": "resp_none"}, headers=headers, timeout=60).status_code == 400
