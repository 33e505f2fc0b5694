"""Large request bodies: what is refused before it is parsed, and what is parsed in another process."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rondo.base.errors import InvalidRequest, Overloaded
from rondo.client.protocol.openai import ChatRequest
from rondo.server.answers.prompts import Prompts
from rondo.server.config import ServerConfig
from rondo.server.workers import bodies
from rondo.server.workers.bodies import Bodies, body_limit, parse_bounded
from rondo.text.tokenizer import Tokenizer
from server.running import Running, start

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}
SMALLEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}]},
    COMPLETIONS: {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/embeddings": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [70]},
}


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def refusal(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_limit_grows_with_the_context() -> None:
    assert body_limit(512) < 5 << 20
    assert 8 << 20 <= body_limit(1 << 17) < body_limit(1 << 20) <= 64 << 20


@pytest.mark.parametrize("route", SMALLEST)
def test_each_route_refuses_a_body_that_no_context_needs(client: httpx.Client, route: str) -> None:
    """The whole body is sent, and the client reads the answer, not the end of its connection."""
    body = json.dumps({"model": "tiny"} | SMALLEST[route]).encode()
    answer = client.post(route, content=body + b" " * (8 << 20), headers=JSON)
    assert refusal(answer) == (413, "body_too_large")
    assert "server.max_body_bytes" in answer.json()["error"]["message"]


def test_a_body_with_many_values_is_parsed_in_another_process(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[70 + i % 50, 71] for i in range(64)]
    body = {"model": "tiny", "prompt": prompts, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    here = client.post(COMPLETIONS, json=body).json()
    monkeypatch.setattr(bodies, "SMALL", 10)
    monkeypatch.setattr(bodies, "FEW_VALUES", 10)
    apart = client.post(COMPLETIONS, json=body).json()
    assert [one["token_ids"] for one in apart["choices"]] == [one["token_ids"] for one in here["choices"]]
    wrong = client.post(COMPLETIONS, json=body | {"promt": 1})
    assert refusal(wrong) == (400, "unknown_parameter")


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 600}, "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": ""}] * 17_000}, "input"),
        (COMPLETIONS, {"prompt": ["a"] * 17_000}, "prompt"),
        ("/score", {"text_1": "a", "text_2": ["a"] * 17_000}, "text_2"),
        ("/tokenize", {"prompt": "a" * 300_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": ""}] * 600}, "messages"),
        ("/detokenize", {"tokens": [70] * 70_000}, "tokens"),
        (COMPLETIONS, {"prompt": "a" * 300_000, "truncate_prompt_tokens": 5}, "prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lists_and_texts_are_bounded(
    client: httpx.Client, route: str, body: dict[str, Any], param: str
) -> None:
    answer = client.post(route, json={"model": "tiny"} | body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_values_that_no_list_limit_covers_are_counted() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    free = {"chat_template_kwargs": {"x": [{"y": [1, {}]}] * 60_000}}
    with pytest.raises(InvalidRequest, match="more than 100000 values"):
        parse_bounded(json.dumps(body | free).encode(), ChatRequest, 512)


def test_a_text_with_far_too_many_tokens_is_not_tokenized_to_its_end(
    model_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(model_folder)
    prompts = Prompts(tokenizer, 512, tokenizer.vocab_size)
    monkeypatch.setattr(Prompts, "_longest", None)  # no bound for its characters
    read: list[int] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text, **more: read.append(len(text)) or encode(self, text, **more)
    )
    with pytest.raises(InvalidRequest, match="maximum context length is 512 tokens"):
        asyncio.run(prompts.of_texts(["xyz " * 100_000]))
    assert sum(read) < 20_000


def test_texts_are_tokenized_in_groups(model_folder: Any) -> None:
    tokenizer = Tokenizer.load(model_folder)
    prompts = Prompts(tokenizer, 100_000, tokenizer.vocab_size)
    texts = [f"abc {i} " * (i % 7) * 1000 for i in range(40)]
    assert asyncio.run(prompts.of_texts(texts)) == tokenizer.encode_batch(texts)


def test_bodies_that_are_still_coming_share_a_bounded_memory() -> None:
    reading = Bodies(1 << 20, 512)
    reading._held = 8 << 20
    with pytest.raises(Overloaded, match="unfinished request bodies"):
        reading._check_memory(1)
    reading._check_memory(0)


def test_a_body_that_stops_coming_is_given_up(model_folder: Any) -> None:
    config = ServerConfig(port=0, served_model_name="tiny", body_seconds=0.2)

    def parts() -> Iterator[bytes]:
        yield b'{"model":'
        # The answer comes before the end of the body.
        time.sleep(2)
        yield b" "

    for running in start(model_folder, config=config):
        answer = httpx.post(running.url + COMPLETIONS, content=parts(), headers=JSON, timeout=60)
        assert refusal(answer) == (408, "body_timeout")
