"""Calls that must be made, by models that know nothing of them: the real engine is held to the family's own form."""

import json

import httpx
import openai
import pytest

from rondo.server.config import ServerConfig
from rondo.text.tokenizer import Tokenizer
from server.families import CALLS, FAMILIES
from server.playback import Playback
from server.running import make_model, start

ASK = [{"role": "user", "content": "How is the weather in Paris?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


@pytest.fixture(scope="module", params=["hermes", "llama3_json", "mistral", "deepseek_v3"])
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "tiny"
    make_model(folder, *FAMILIES[request.param], context=2048)
    # What has learned nothing would go on reasoning for ever.
    config = ServerConfig(port=0, served_model_name="tiny", reasoning_parser="none")
    for running in start(folder, config=config):
        yield folder, running


@pytest.fixture
def client(family) -> openai.OpenAI:
    return openai.OpenAI(base_url=family[1].url + "/v1", api_key="none", max_retries=0)


def calls_of(message) -> list[tuple[str, dict]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def is_good(call: tuple[str, dict]) -> bool:
    return call in [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}), ("now", {})]


def test_required(client):
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "seed": 1}
    options |= {"max_tokens": 400, "temperature": 1.5}
    choice = client.chat.completions.create(**options).choices[0]
    found = calls_of(choice.message)
    assert all(map(is_good, found)), found
    assert choice.finish_reason in ("tool_calls", "length")
    if choice.finish_reason == "tool_calls":
        assert found
        assert choice.message.content is None
    with client.chat.completions.stream(**options) as stream:
        assert calls_of(stream.get_final_completion().choices[0].message) == found
    one = client.chat.completions.create(**options, parallel_tool_calls=False).choices[0]
    assert (one.finish_reason, len(one.message.tool_calls)) == ("tool_calls", 1)


def test_named(client):
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "max_tokens": 200}
    choice = {"type": "function", "function": {"name": "get_weather"}}
    for seed in range(2):
        message = client.chat.completions.create(**options, tool_choice=choice, seed=seed).choices[0].message
        [(name, arguments)] = calls_of(message)
        assert (name, arguments["city"] in ("Paris", "Rome")) == ("get_weather", True)
    flat = {"type": "function", **WEATHER["function"]}
    answer = client.responses.create(
        model="tiny", input="Paris?", tools=[flat], tool_choice={"type": "function", "name": "get_weather"}
    )
    [call] = answer.output
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_a_call_or_json(client):
    """With tools, `response_format` is the form of the answers that call none."""
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "response_format": FORM, "max_tokens": 400}
    for seed in range(2):
        choice = client.chat.completions.create(**options, parallel_tool_calls=False, seed=seed).choices[0]
        if choice.finish_reason == "tool_calls":
            assert all(map(is_good, calls_of(choice.message)))
        else:
            assert json.loads(choice.message.content)["city"] in ("Paris", "Rome")


def test_json_of_the_responses_api(client):
    format = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    answer = client.responses.create(model="tiny", input="Paris?", text={"format": format})
    assert json.loads(answer.output_text)["city"] in ("Paris", "Rome")
    assert answer.text.format.name == "city"


def test_what_cannot_be_enforced_names_the_field(family):
    bad = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "strin"}}}
    body = {"model": "tiny", "messages": ASK, "tools": [bad], "tool_choice": "required"}
    answer = httpx.post(family[1].url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "tool_choice"


def test_reasoning_comes_before_the_form(tmp_path, monkeypatch):
    """The prompt opens the reasoning: the form begins where it ends, and the answer is not taken for reasoning."""
    folder = make_model(tmp_path / "tiny", *FAMILIES["deepseek_v3"], context=2048)
    for running in start(folder, config=ServerConfig(port=0, served_model_name="tiny")):
        player = Playback(Tokenizer.load(folder))
        monkeypatch.setattr(running.engine, "generate", player.generate)
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        player.says('Paris, then.</think>{"city": "Paris"}')
        options = {"model": "tiny", "messages": ASK}
        message = client.chat.completions.create(**options, response_format=FORM).choices[0].message
        assert (message.reasoning_content, message.content) == ("Paris, then.", '{"city": "Paris"}')
        assert "</think>" in player.requests[-1].sampling.structured_outputs.grammar
        player.says(CALLS["deepseek_v3"])
        client.chat.completions.create(**options, tools=TOOLS, tool_choice="required")
        assert "get_weather" in player.requests[-1].sampling.structured_outputs.grammar
        # Other forms are those of the whole answer.
        player.says("left")
        message = (
            client.chat.completions.create(**options, extra_body={"guided_choice": ["left"]})
            .choices[0]
            .message
        )
        assert (message.content, getattr(message, "reasoning_content", None)) == ("left", None)
