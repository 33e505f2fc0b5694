"""Forms of answers over HTTP, asked for by the real client and by vLLM's fields."""

import json

import httpx
import openai
import pytest
from pydantic import BaseModel

CHAT = [{"role": "user", "content": "abc def"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture
def client(running) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def test_the_client_parses_into_its_own_type(client):
    class Answer(BaseModel):
        yes: bool
        count: int

    answer = client.chat.completions.parse(
        model="tiny", messages=CHAT, response_format=Answer, max_tokens=200, seed=1, logit_bias={}
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


def is_schema(text: str) -> bool:
    return set(json.loads(text)) == {"a", "b"}


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
            is_schema,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, is_schema),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}}, is_schema),
        ({"structured_outputs": {"regex": "ab{2}"}}, "abb".__eq__),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"}, is_schema),
        ({"guided_regex": "[0-9]{4}"}, str.isdigit),
        ({"guided_choice": ["left", "right"]}, {"left", "right"}.__contains__),
        ({"guided_grammar": 'root ::= "on" | "off"'}, {"on", "off"}.__contains__),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
                    "triggers": ["<f"],
                },
                "max_tokens": 30,
            },
            lambda text: isinstance(text, str),
        ),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_fields(running, route, fields, fits):
    asked = {"messages": CHAT} if route.startswith("chat") else {"prompt": "abc"}
    body = {"model": "tiny", "max_tokens": 400, "n": 2, "seed": 3, **asked, **fields}
    whole = httpx.post(f"{running.url}/v1/{route}", json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    for choice in whole.json()["choices"]:
        text = choice["message"]["content"] if route.startswith("chat") else choice["text"]
        assert fits(text), text


def test_any_object(client):
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, response_format={"type": "json_object"}, max_tokens=60, seed=2
    )
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
