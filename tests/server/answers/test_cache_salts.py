"""The prefix cache of several API keys: one key's prompts are never found by another."""

from collections.abc import Iterator

import httpx
import pytest

from rondo.base.telemetry.account import RequestStats
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.server.served import Salts
from server.running import Running, start

PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def shared(model_folder) -> Iterator[Running]:
    config = ServerConfig(port=0, served_model_name="tiny", api_key=["key-a", "key-b"])
    yield from start(model_folder, EngineConfig(max_num_seqs=4, block_size=8), config)


def post(server: Running, path: str, key: str, **fields) -> dict:
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(server.url + path, json={"model": "tiny"} | fields, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(server: Running, key: str, prompt: list[int], **fields) -> int:
    body = post(server, "/v1/completions", key, prompt=prompt, max_tokens=2, **fields)
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_another_keys_prompt_is_not_found(shared):
    assert [cached(shared, key, PROMPT) for key in ("key-a", "key-b", "key-a", "key-b")] == [0, 0, 32, 32]


def test_a_cache_salt_parts_the_requests_of_one_key_too(shared):
    prompt = PROMPT[::-1]
    asked = [("key-a", "x"), ("key-a", "y"), ("key-b", "x"), ("key-a", "x"), ("key-b", "x")]
    found = [cached(shared, key, prompt, cache_salt=salt) for key, salt in asked]
    assert found == [0, 0, 0, 32, 32]
    assert cached(shared, "key-a", prompt) == 0


def test_chat_and_responses_are_salted(shared):
    text = "abc def " * 12
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    said = [post(shared, "/v1/chat/completions", key, **chat) for key in ("key-a", "key-b", "key-a")]
    first, other, again = (one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in said)
    assert (first, other) == (0, 0)
    assert again > 0
    more = {"input": text, "max_output_tokens": 1}
    found = [
        post(shared, "/v1/responses", "key-a", **more, **salt)["usage"]["input_tokens_details"][
            "cached_tokens"
        ]
        for salt in ({"cache_salt": "x"}, {"cache_salt": "y"}, {"cache_salt": "x"})
    ]
    assert (found[0], found[1]) == (0, 0)
    assert found[2] > 0


def test_vectors_are_salted(shared):
    hits = []
    for key in ("key-a", "key-b", "key-a", "key-b"):
        before = shared.engine.core.scheduler.counters.prefix_hits
        post(shared, "/v1/embeddings", key, input=[*PROMPT[5:], 7])
        hits.append(shared.engine.core.scheduler.counters.prefix_hits - before)
    assert hits == [0, 0, 32, 32]


def test_one_key_or_none_changes_nothing():
    for keys in ([], ["a"], ["a", "a"]):
        with RequestStats("r", api_key="a"):
            assert Salts(keys).of(None) is None


def test_key_and_salt_are_kept_apart_and_hidden():
    salts = Salts(["a", "ab"])
    made = set()
    for key, salt in [("a", "bc"), ("ab", "c"), ("a", None), ("ab", None), ("a", "c")]:
        with RequestStats("r", api_key=key):
            made.add(salts.of(salt))
            assert salts.of(salt) == salts.of(salt)
    assert len(made) == 5
    with RequestStats("r", api_key="a"):
        assert Salts(["a", "ab"]).of(None) not in made  # each process has a secret of its own
