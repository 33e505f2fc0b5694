"""Every field of OpenAI's requests, and of vLLM's beside them: it works, a header lists it as ignored, or a 400 names
it."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from rondo.client.protocol.model_routes import MODEL_ROUTES
from rondo.client.protocol.openai import ChatRequest, CompletionRequest, StreamOptions
from rondo.client.protocol.responses import ResponsesRequest
from rondo.client.protocol.texts import (
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from rondo.gateway.auth import PROXIED

TABLE: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "request_fields.json").read_text()
)
ROUTES = {"chat": "chat/completions", "completions": "completions"}
KINDS = {"chat": ChatRequest, "completions": CompletionRequest}
OPENAI = {"chat": chat_create_params, "completions": completion_create_params}
BEYOND_EACH = {"both": ("chat", "completions"), "chat": ("chat",), "completions": ("completions",)}
ONLY_COMPLETIONS = {"add_special_tokens"}


def cases(outcome: str) -> list[Any]:
    return [
        pytest.param(route, field, value, id=f"{route}-{field}")
        for part, routes in BEYOND_EACH.items()
        for field, value in TABLE[part][outcome].items()
        for route in routes
        if route == "completions" or field not in ONLY_COMPLETIONS
    ]


def ask(running, route: str, field: str, value: Any, **more: Any) -> httpx.Response:
    own = {"messages": [{"role": "user", "content": "abc"}]} if route == "chat" else {"prompt": "abc"}
    body = {**more, "model": "tiny", "max_tokens": more.get("max_tokens") or 2, **own, field: value}
    # Python's JSON writes NaN, which some clients send.
    return httpx.post(
        f"{running.url}/v1/{ROUTES[route]}",
        content=json.dumps(body),
        headers={"content-type": "application/json"},
        timeout=60,
    )


@pytest.mark.parametrize(("route", "field", "value"), cases("works"))
def test_it_works(running, route, field, value):
    answer = ask(running, route, field, value)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "field", "value"), cases("ignored"))
def test_a_header_lists_what_has_no_effect(running, route, field, value, stream):
    answer = ask(running, route, field, value, stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-rondo-ignored"] == field


def test_the_header_lists_several_and_no_defaults(running):
    answer = ask(running, "chat", "user", "someone", verbosity="high", service_tier="default", metadata=None)
    assert answer.headers["x-rondo-ignored"] == "service_tier, user, verbosity"
    assert "x-rondo-ignored" not in ask(running, "chat", "user", None).headers


@pytest.mark.parametrize("route", ROUTES)
def test_null_is_the_default_of_every_field(running, route):
    """But of those that have none."""
    model = KINDS[route]
    nulls = {
        field.alias or name: None for name, field in model.model_fields.items() if not field.is_required()
    }
    answer = ask(running, route, "n", None, **nulls)
    assert answer.status_code == 200, answer.text
    if route == "chat":
        nulls |= {"continue_final_message": True, "stream_options": dict.fromkeys(StreamOptions.model_fields)}
        assert ask(running, route, "n", None, **nulls | {"stream": True}).status_code == 200
    assert "x-rondo-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("path", "kind", "required"),
    [
        ("/v1/responses", ResponsesRequest, {"model": "tiny", "input": "abc"}),
        ("/v1/embeddings", EmbeddingRequest, {"model": "tiny", "input": "abc"}),
        ("/score", ScoreRequest, {"queries": "abc", "documents": "def"}),
        ("/rerank", RerankRequest, {"query": "abc", "documents": "def"}),
        ("/tokenize", TokenizeRequest, {"prompt": "abc"}),
        ("/detokenize", DetokenizeRequest, {"tokens": [5]}),
    ],
)
def test_null_is_the_default_on_every_route(running, path, kind, required):
    nulls = {field.alias or name: None for name, field in kind.model_fields.items()}
    answer = httpx.post(running.url + path, json=nulls | required, timeout=60)
    assert answer.status_code == 200, answer.text


def test_null_is_the_default_in_nested_objects(running):
    form = {"regex": "ab", "disable_any_whitespace": None, "json": None, "choice": None}
    assert ask(running, "chat", "structured_outputs", form).status_code == 200
    body = ResponsesRequest.model_validate_json(
        '{"model": "m", "input": "x", "text": {"verbosity": "low"}, "stream_options": {"include_obfuscation": null}}',
        strict=True,
    )
    assert body.ignored() == ["text.verbosity"]


@pytest.mark.parametrize("field", ["model", "messages"])
def test_null_is_refused_where_there_is_no_default(running, field):
    answer = ask(running, "chat", field, None)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


SCHEMA = {"type": "boolean"}


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json", "value": SCHEMA}, "true|false"),
        ({"type": "json_object", "value": SCHEMA}, "true|false"),
        ({"type": "json", "value": json.dumps(SCHEMA)}, "true|false"),
        ({"type": "json_schema", "value": SCHEMA}, "true|false"),
        ({"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}, "true|false"),
        ({"type": "regex", "value": "(ab){3}"}, "ababab"),
    ],
)
def test_hugging_faces_response_format_has_a_value(running, form, pattern):
    answer = ask(running, "chat", "response_format", form, max_tokens=20)
    assert answer.status_code == 200, answer.text
    assert re.fullmatch(pattern, answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json"},
        {"type": "regex", "value": {}},
        {"type": "text", "value": "x"},
        {"type": "json_schema", "value": SCHEMA, "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json", "value": "no schema"},
    ],
)
def test_a_wrong_value_is_refused(running, form):
    answer = ask(running, "chat", "response_format", form)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize(("route", "field", "value"), [*cases("wrong"), *cases("refused")])
def test_a_400_names_it(running, route, field, value):
    answer = ask(running, route, field, value)
    assert answer.status_code in (400, 404) if field == "model" else answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].split(".")[0] == field, error
    assert field in error["message"]


NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e400, "1", None, [], True])
@pytest.mark.parametrize("field", [*NUMBERS, "top_k", "n", "min_tokens", "max_tokens"])
def test_what_is_no_number_is_named(running, field, value):
    answer = ask(running, "completions", field, value)
    if value is None:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("route", ROUTES)
def test_the_table_has_them_all(route):
    known = {
        field
        for part in ("both", route)
        for outcome in ("works", "ignored", "wrong", "refused")
        for field in TABLE[part][outcome]
    }
    assert set(OPENAI[route].CompletionCreateParamsBase.__annotations__) <= known
    assert set(KINDS[route].model_fields) <= known


def test_the_gateway_passes_on_the_routes_of_the_engine():
    assert set(MODEL_ROUTES) == set(PROXIED)
