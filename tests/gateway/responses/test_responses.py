"""Stored responses with the client of OpenAI, in front of an engine that stores nothing."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.responses.engine import Engine
from gateway.stub import RunningGateway, client_of, gateway_of
from rondo.base.errors import StorageError


def test_a_response_is_stored_retrieved_continued_and_deleted(client: openai.OpenAI, engine: Engine) -> None:
    first = client.responses.create(model="m", input="one", metadata={"a": "b"})
    assert (first.store, first.output_text) == (True, "1: one")  # type: ignore[attr-defined]
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(model="m", input="two", previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("3: two", first.id)
    third = client.responses.create(
        model="m", input=[{"role": "user", "content": "three"}], previous_response_id=second.id
    )
    assert third.output_text == "5: three"
    sent = engine.bodies[-1]["input"]
    assert [each["role"] for each in sent] == ["user", "assistant", "user", "assistant", "user"]
    (item,) = client.responses.input_items.list(third.id).data
    assert item.type == "message"
    assert item.content[0].text == "three"  # type: ignore[union-attr]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input="four", previous_response_id=third.id)
    assert refused.value.code == "previous_response_not_found"
    assert client.responses.retrieve(third.id) == third


def test_a_stream_is_stored_before_its_last_event(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="one")
    with client.responses.stream(model="m", input="two", previous_response_id=first.id) as stream:
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.created":
                assert event.response.previous_response_id == first.id
            if event.type == "response.completed":
                found = client.responses.retrieve(event.response.id)
                assert found.output_text == "3: two"
        final = stream.get_final_response()
    assert kinds.count("response.output_text.delta") == len("3: two")
    assert (final.output_text, final.store) == ("3: two", True)  # type: ignore[attr-defined]
    assert client.responses.create(model="m", input="x", previous_response_id=final.id).output_text == "5: x"


def test_events_that_end_with_crlf_pass_as_they_come_and_are_stored(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "mode", "crlf")
    with client.responses.create(model="m", input="one", stream=True) as events:
        first = next(iter(events))
        assert first.type == "response.created"
        engine.gone.set()
        last: Any = list(events)[-1]
    assert last.response.store
    assert client.responses.retrieve(last.response.id).output_text == "1: one"


def test_a_response_that_is_cut_off_ends_with_the_connection(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "mode", "cut")
    with pytest.raises(httpx.RemoteProtocolError):
        headers = {"authorization": f"Bearer {client.api_key}"}
        httpx.post(f"{client.base_url}responses", json={"model": "m", "input": "x"}, headers=headers)


@pytest.mark.parametrize("field", ["metadata", "input", "instructions"])
def test_a_body_that_is_not_utf8_is_refused(client: openai.OpenAI, field: str) -> None:
    body = json.dumps({"model": "m", "input": "x", "background": True, field: "BYTE"}).encode()
    headers = {"authorization": f"Bearer {client.api_key}", "content-type": "application/json"}
    content = body.replace(b"BYTE", b"\xff")
    answer = httpx.post(f"{client.base_url}responses", content=content, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


def test_a_context_above_the_largest_body_is_refused(engine: Engine, tmp_path: Path) -> None:
    with gateway_of([engine.url], tmp_path, max_body_bytes=1100) as small, client_of(small) as client:
        first = client.responses.create(model="m", input="x" * 700)
        with pytest.raises(openai.BadRequestError, match="max_body_bytes") as refused:
            client.responses.create(model="m", input="two", previous_response_id=first.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "context_too_large")


def test_a_stored_response_is_streamed_again(client: openai.OpenAI) -> None:
    made = client.responses.create(model="m", input="one")
    events = list(client.responses.retrieve(made.id, stream=True))
    assert [event.type for event in events][-1] == "response.completed"
    rest = list(client.responses.retrieve(made.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in rest] == list(range(4, len(events)))
    with client.responses.stream(response_id=made.id) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == "1: one"


def test_what_is_not_stored_cannot_be_continued(client: openai.OpenAI, engine: Engine) -> None:
    made = client.responses.create(model="m", input="one", store=False)
    assert made.store is False  # type: ignore[attr-defined]
    assert engine.bodies[-1] == {"model": "m", "input": "one"}
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="not stored"):
        client.responses.create(model="m", input="two", previous_response_id=made.id)


@pytest.mark.parametrize(
    ("policy", "given", "kept"), [("on_request", None, False), ("on_request", True, True)]
)
def test_storing_on_request(
    engine: Engine, tmp_path: Path, policy: str, given: bool | None, kept: bool
) -> None:
    with (
        gateway_of([engine.url], tmp_path, responses={"store": policy}) as gateway,
        client_of(gateway) as client,
    ):
        made = client.responses.create(model="m", input="one", store=openai.omit if given is None else given)
        response = httpx.get(f"{gateway.url}/v1/responses/{made.id}")
        assert response.is_success == kept


def test_where_nothing_is_stored_the_request_says_so(engine: Engine, tmp_path: Path) -> None:
    with (
        gateway_of([engine.url], tmp_path, responses={"store": "never"}) as gateway,
        client_of(gateway) as client,
    ):
        assert client.responses.create(model="m", input="one").output_text == "1: one"
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="m", input="one", store=True)
        assert refused.value.param == "store"


def test_an_engines_error_passes_and_nothing_is_stored(client: openai.OpenAI, engine: Engine) -> None:
    conversation = client.conversations.create()
    engine.mode = "error"
    try:
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="m", input="one", conversation=conversation.id)
    finally:
        engine.mode = "ok"
    assert client.conversations.items.list(conversation.id).data == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": "yes"}, "store"),
        ({"previous_response_id": 1}, "previous_response_id"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
        ({"previous_response_id": "../../x"}, "previous_response_id"),
        ({"conversation": {}}, "conversation"),
        ({"conversation": "conv_x"}, "conversation"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "model": "unknown"}, "model"),
        ({"input": 1}, "input"),
        ({"input": [1]}, "input"),
        ({"input": [{}]}, "input"),
    ],
)
def test_a_wrong_field_is_named(
    gateway: RunningGateway, client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    headers = {"authorization": f"Bearer {client.api_key}"}
    body = {"model": "m", "input": "x"} | fields
    response = httpx.post(gateway.url + "/v1/responses", json=body, headers=headers)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_without_room_on_the_disk_the_client_gets_its_response(
    gateway: RunningGateway, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def full(stored: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(gateway.gateway.objects.responses, "keep", full)
    if stream:
        with client.responses.stream(model="m", input="one") as events:
            made: Any = events.get_final_response()
    else:
        made = client.responses.create(model="m", input="one")
    assert (made.output_text, made.store) == ("1: one", False)


def test_usage_is_counted_as_without_a_store(gateway: RunningGateway, client: openai.OpenAI) -> None:
    client.responses.create(model="m", input="one")
    with client.responses.stream(model="m", input="two") as stream:
        stream.until_done()
    rows = httpx.get(gateway.url + "/v1/usage", headers={"authorization": f"Bearer {client.api_key}"}).json()
    assert [(row["requests"], row["input_tokens"], row["output_tokens"]) for row in rows["data"]] == [
        (2, 6, 4)
    ]
