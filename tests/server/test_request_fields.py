"""Every field of OpenAI's requests, and of vLLM's beside them: it works, or a 400 names it."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from rondo.client.openai import ChatRequest, CompletionRequest

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


def ask(running, route: str, field: str, value: Any) -> httpx.Response:
    own = {"messages": [{"role": "user", "content": "abc"}]} if route == "chat" else {"prompt": "abc"}
    body = {"model": "tiny", "max_tokens": 2, **own, field: value}
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
        for outcome in ("works", "wrong", "refused")
        for field in TABLE[part][outcome]
    }
    assert set(OPENAI[route].CompletionCreateParamsBase.__annotations__) <= known
    assert set(KINDS[route].model_fields) <= known
