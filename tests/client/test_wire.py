"""What is wrong with a body is told soon, however much of it is wrong."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import ChatRequest, CompletionRequest
from rondo.client.protocol.refusals import parse
from rondo.client.protocol.response_input import messages_of
from rondo.client.protocol.responses import ResponsesRequest
from rondo.client.protocol.wire import shown

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
PART = {"type": "image"}


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (CompletionRequest, {"model": "m", "prompt": [1.5] * 50_000}, "prompt"),
        (CompletionRequest, {"model": "m", "prompt": [[1.5] * 50_000]}, "prompt"),
        (CompletionRequest, {"model": "m", "prompt": "x", "stop": [1] * 50_000}, "stop"),
        (ChatRequest, CHAT | {"messages": [{"role": "user", "content": [PART] * 50_000}]}, "messages"),
        (ChatRequest, CHAT | {"tools": [{}] * 50_000}, "tools"),
    ],
)
def test_of_a_list_the_first_wrong_element_is_told(kind: Any, body: Any, param: str) -> None:
    raw = json.dumps(body).encode()
    with pytest.raises(ValidationError) as all_told:
        kind.model_validate_json(raw, strict=True)
    assert all_told.value.error_count() < 10
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, raw)
    assert caught.value.param == param
    assert len(caught.value.message) < 300


def test_unknown_fields_without_end() -> None:
    with pytest.raises(InvalidRequest, match="5000 fields are unknown or wrong"):
        parse(ChatRequest, json.dumps(CHAT | {f"field{i}": 1 for i in range(5000)}).encode())
    with pytest.raises(InvalidRequest, match="unknown field: field0"):
        parse(ChatRequest, json.dumps(CHAT | {f"field{i}": 1 for i in range(5)}).encode())


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (
            ChatRequest,
            {"stream_options": {"include_usag": True}},
            "include_usag. Did you mean include_usage?",
        ),
        (
            ResponsesRequest,
            {"stream_options": {"include_usage": True}},
            "Did you mean include_obfuscation?",
        ),
        (
            ResponsesRequest,
            {"text": {"format": {"type": "text", "nam": 1}}},
            "text.format.nam. Did you mean name?",
        ),
        (
            ChatRequest,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}, "stric": True},
                }
            },
            "response_format.json_schema.stric. Did you mean strict?",
        ),
        (
            ResponsesRequest,
            {"tools": [{"type": "function", "name": "x", "parameter": {}}]},
            "tools.0.parameter. Did you mean parameters?",
        ),
    ],
)
def test_an_unknown_field_names_the_nearest_beside_it(kind: Any, body: Any, says: str) -> None:
    base = CHAT if kind is ChatRequest else {"model": "m", "input": "x"}
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, json.dumps(base | body).encode())
    assert caught.value.message.endswith(says)


def test_a_huge_value_is_shown_by_its_beginning() -> None:
    assert shown("ab") == "'ab'"
    assert shown([1.5, "x", {"a": None}]) == "[1.5, 'x', {'a': None}]"
    for value in ("a" * 10**6, [1] * 10**6, [[1] * 10**6], 10**3000):
        assert len(shown(value)) <= 80
    with pytest.raises(InvalidRequest, match=r"input\.0\.content.* is wrong") as caught:
        messages_of([{"role": "user", "content": [1] * 10**6}], None)
    assert len(caught.value.message) < 200
