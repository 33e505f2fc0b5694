"""A stream has an event for each token, also for one without text: part of a character, or a special token."""

import itertools
import json

import httpx
import pytest

from server.playback import Playback
from server.running import Running

EMOJI = "\N{GRINNING FACE}\N{SNOWMAN}"


def events(server: Running, path: str, body: dict) -> list[dict]:
    answer = httpx.post(f"{server.url}/v1/{path}", json={"model": "tiny", "stream": True} | body, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


CHAT = {"messages": [{"role": "user", "content": "a"}]}


def test_chat_has_an_event_for_each_token(served, hermes: Playback):
    hermes.says(f"a{EMOJI}<|im_start|>b")
    count = len(hermes.tokenizer.encode(hermes.answers[0], add_special=False))
    role, *said = (event["choices"][0]["delta"] for event in events(served[1], "chat/completions", CHAT))
    assert role["role"] == "assistant"
    assert len(said) == count
    texts = [delta["content"] for delta in said]
    assert texts.count("") >= 6  # an emoji is four bytes, each a token here
    assert "".join(texts) == f"a{EMOJI}b"


def test_a_token_that_a_parser_holds_back_has_an_empty_delta(served, hermes: Playback):
    hermes.says('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    said = [e["choices"][0] for e in events(served[1], "chat/completions", CHAT | {"tools": [tool]})]
    count = len(hermes.tokenizer.encode(hermes.answers[0], add_special=False))
    assert {"content": ""} in [choice["delta"] for choice in said[1:]]
    assert len(said) >= count
    assert said[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("more", [{}, {"stop": ["zzz"]}, {"logprobs": 1}, {"return_token_ids": True}])
def test_completions_have_an_event_for_each_token(running, more):
    body = {
        "prompt": "abc",
        "max_tokens": 40,
        "temperature": 1.5,
        "seed": 3,
        "ignore_eos": True,
        "n": 2,
    } | more
    said = events(running, "completions", body | {"stream_options": {"continuous_usage_stats": True}})
    # The engine may join the tokens of two steps where this machine is busy; usage has each token.
    counts = [event["usage"]["completion_tokens"] for event in said]
    assert counts[-1] == 80
    assert all(before < after for before, after in itertools.pairwise(counts))


def test_responses_have_an_event_for_each_token(running):
    """The model of the tests draws parts of characters; on a busy machine an event may hold several tokens."""
    found: set[str] = set()
    for seed in range(10):
        body = {"input": "a", "max_output_tokens": 20, "temperature": 1.5, "seed": seed}
        said = events(running, "responses", body)
        deltas = [event["delta"] for event in said if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == said[-1]["response"]["output"][0]["content"][0]["text"]
        found.update(deltas)
    assert "" in found
