"""`/tokenizer_info` and `/v1/responses/input_tokens`."""

import json

import httpx
import openai
import pytest

from rondo.server.config import ServerConfig
from server.families import TOOLS
from server.running import start

RESPONSE_TOOLS = [{"type": "function"} | tool["function"] for tool in TOOLS]


def test_tokenizer_info_is_what_the_models_folder_says(running, model_folder):
    answer = httpx.get(running.url + "/tokenizer_info")
    assert answer.status_code == 200
    said, file = answer.json(), json.loads((model_folder / "tokenizer_config.json").read_text())
    assert said.items() >= {k: v for k, v in file.items() if k != "chat_template"}.items()
    assert "<|im_start|>" in said["chat_template"]
    assert said["tokenizer_class"]


def test_tokenizer_info_needs_the_key(model_folder):
    for server in start(model_folder, config=ServerConfig(port=0, api_key="k")):
        assert httpx.get(server.url + "/tokenizer_info").status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert httpx.get(server.url + "/tokenizer_info", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hello"},
        {"input": [{"role": "user", "content": "Hello"}], "instructions": "Be brief."},
        {"input": "Hello", "tools": RESPONSE_TOOLS, "tool_choice": "auto"},
    ],
)
def test_input_tokens_are_those_of_the_response(talk: openai.OpenAI, body):
    counted = talk.responses.input_tokens.count(model="tiny", **body)
    answer = talk.responses.create(model="tiny", max_output_tokens=1, **body)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == answer.usage.input_tokens


def test_input_tokens_need_no_model_and_name_what_is_wrong(talk: openai.OpenAI):
    assert talk.responses.input_tokens.count(input="Hello").input_tokens > 1
    for body, param in [
        ({"input": "x", "model": "other"}, "model"),
        ({"input": [{"type": "image"}]}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
    ]:
        with pytest.raises(openai.APIStatusError) as error:
            talk.responses.input_tokens.count(**body)
        assert error.value.param == param
