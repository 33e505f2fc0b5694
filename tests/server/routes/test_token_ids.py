"""Token ids of prompts and samples, as vLLM returns them."""

import json

import httpx
import pytest

CHAT = [{"role": "user", "content": "abc def"}]


def test_completions_return_the_prompts_token_ids(running):
    body = {
        "model": "tiny",
        "prompt": ["abcdef", "ab"],
        "n": 2,
        "max_tokens": 3,
        "ignore_eos": True,
        "truncate_prompt_tokens": 3,
        "return_token_ids": True,
    }
    url = running.url + "/v1/completions"
    wanted = [ids_of(running, "abcdef")[-3:]] * 2 + [ids_of(running, "ab")] * 2
    choices = httpx.post(url, json=body, timeout=60).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == wanted
    assert "prompt_token_ids" not in httpx.post(url, json=body | {"return_token_ids": False}).text
    streamed = [event["choices"][0] for event in events_of(url, body)]
    first = {i: next(c for c in streamed if c["index"] == i) for i in range(4)}
    assert [first[i]["prompt_token_ids"] for i in range(4)] == wanted
    assert sum("prompt_token_ids" in choice for choice in streamed) == 4


def test_chat_returns_the_prompts_token_ids(running):
    body = {"model": "tiny", "messages": CHAT, "n": 2, "max_tokens": 3, "return_token_ids": True}
    url = running.url + "/v1/chat/completions"
    rendered = httpx.post(running.url + "/tokenize", json={"model": "tiny", "messages": CHAT}).json()
    whole = httpx.post(url, json=body, timeout=60).json()
    assert whole["prompt_token_ids"] == rendered["tokens"]
    assert "prompt_token_ids" not in httpx.post(url, json=body | {"return_token_ids": False}).text
    streamed = events_of(url, body)
    with_prompt = [event for event in streamed if "prompt_token_ids" in event]
    assert [event["prompt_token_ids"] for event in with_prompt] == [rendered["tokens"]] * 2
    assert [event["choices"][0]["delta"].get("role") for event in with_prompt] == ["assistant"] * 2


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_0_lists_the_sampled_token(running, echo):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "logprobs": 0, "echo": echo}
    body["return_tokens_as_token_ids"] = True
    [choice] = httpx.post(running.url + "/v1/completions", json=body, timeout=60).json()["choices"]
    logprobs = choice["logprobs"]
    wanted = [
        None if value is None else {token: value}
        for token, value in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    ]
    assert logprobs["top_logprobs"] == wanted


def ids_of(running, text):
    return httpx.post(running.url + "/tokenize", json={"model": "tiny", "prompt": text}).json()["tokens"]


def events_of(url, body):
    lines = httpx.post(url, json=body | {"stream": True}, timeout=60).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
