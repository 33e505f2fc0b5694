"""Models whose chat template loops or explodes: their chats are refused, and all else is answered."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rondo.server.config import ServerConfig
from server.running import TEMPLATE, Running, make_model, start

LIMITS: dict[str, Any] = {"template_seconds": 2.0, "template_characters": 50_000}
CHAT = "/v1/chat/completions"
ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}{{ 9 ** 9 }}{% endfor %}{% endfor %}"
BY_CONTENT = (
    "{% set word = messages[0].content %}"
    "{% if word == 'loop' %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    "{% elif word == 'pad' %}{{ 'a'|center(99999999999) }}"
    "{% elif word == 'write' %}{% for i in range(9000) %}{{ 'abcdefghijklmno' }}{% endfor %}"
    "{% elif word == 'refuse' %}{{ raise_exception('no such word') }}"
    "{% endif %}"
) + TEMPLATE


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_model(tmp_path_factory.mktemp("template") / "tiny", BY_CONTENT)
    yield from start(folder, config=ServerConfig(port=0, served_model_name="tiny", **LIMITS))


def chat(word: str) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": word}],
        "max_tokens": 2,
        "temperature": 0,
    }


@pytest.mark.parametrize(
    ("word", "says"),
    [("loop", "server.template_seconds"), ("pad", "MiB of memory"), ("write", "server.template_characters")],
)
def test_a_template_that_does_too_much_is_ended(served: Running, word: str, says: str) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            asked = asyncio.create_task(client.post(CHAT, json=chat(word)))
            # While it renders, the event loop answers: at least once before the template is ended.
            assert (await client.get("/health")).status_code == 200
            answer = await asked
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (422, "chat_template_limit")
            assert says in error["message"]
            assert "server.chat_template" in error["message"]
            assert (await client.post(CHAT, json=chat("hello"))).status_code == 200

    asyncio.run(main())


def test_what_the_template_refuses_is_a_400_from_the_other_process_too(served: Running) -> None:
    answer = httpx.post(served.url + CHAT, json=chat("refuse"), timeout=60)
    assert answer.status_code == 400
    assert "no such word" in answer.json()["error"]["message"]


def test_the_same_prompt_comes_from_both_places(served: Running, tmp_path: Any) -> None:
    body = {"model": "tiny", "messages": chat("hello")["messages"]}
    apart = httpx.post(served.url + "/tokenize", json=body, timeout=60).json()
    for usual in start(make_model(tmp_path / "tiny"), config=ServerConfig(port=0, served_model_name="tiny")):
        assert httpx.post(usual.url + "/tokenize", json=body, timeout=60).json() == apart
