"""Streams that say nothing of a sample before its end."""

from typing import Any

import pytest

import rondo
from rondo.web import http
from support.engines import slowly

ASKED = {"max_tokens": 12, "n": 3, "seed": 5, "ignore_eos": True, "return_token_ids": True}
WHOLE = {"stream_options": {"whole_samples": True}}


def said(events: list[dict[str, Any]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in events:
        for choice in event["choices"]:
            found[choice["index"]] = found.get(choice["index"], []) + (choice.get("token_ids") or [])
    return found


def test_each_sample_is_one_event_with_the_same_tokens(running) -> None:
    with rondo.Client(running.url) as client:
        whole = list(client.stream_complete("abc", **ASKED, **WHOLE))
        assert len(whole) == 3
        assert all(event["choices"][0]["finish_reason"] == "length" for event in whole)
        assert said(whole) == said(list(client.stream_complete("abc", **ASKED)))
        chat = list(client.stream_chat("abc", **ASKED, **WHOLE))
        assert sum(bool(choice.get("token_ids")) for event in chat for choice in event["choices"]) == 3
        assert said(chat) == said(list(client.stream_chat("abc", **ASKED)))


def test_while_nothing_comes_there_are_signs_of_life(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SIGN_SECONDS", 0.01)
    runner = running.engine.core.runner
    monkeypatch.setattr(runner, "run", slowly(runner.run, 0.02))
    with rondo.Client(running.url) as client:
        body = {"model": client.models()[0], "prompt": "abc", "stream": True} | ASKED | WHOLE
        with client._http.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[0] == lines[1] == ": waiting"
        assert lines[-1] == "data: [DONE]"
        assert len(list(client.stream_complete("abc", **ASKED, **WHOLE))) == 3
