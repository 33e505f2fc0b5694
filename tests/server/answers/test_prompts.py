"""Prompts of any length: none blocks the server, and none that can fit is refused."""

import asyncio
import random
import re
import threading
import time

import httpx
import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from rondo.base.errors import InvalidRequest
from rondo.server.answers.prompts import Prompts
from rondo.text.bound import longest_text
from rondo.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_folder) -> Tokenizer:
    return Tokenizer.load(model_folder)


def test_the_bound_is_sound(tokenizer):
    rng = random.Random(0)
    words = [tokenizer.decode([rng.randrange(tokenizer.vocab_size)], skip_special=False) for _ in range(300)]
    for _ in range(50):
        text = "".join(rng.choice([*words, "ä", "\u1f82", " ", "\n", "a"]) for _ in range(40))
        assert len(text) <= longest_text(tokenizer, len(tokenizer.encode(text)))


def test_tokenizers_that_may_drop_text_have_no_bound(tokenizer, monkeypatch):
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    monkeypatch.setattr(tokenizer, "_backend", backend)
    bound = longest_text(tokenizer, 10)
    backend.normalizer = normalizers.NFC()
    assert longest_text(tokenizer, 10) == 4 * bound
    for dropping in (normalizers.Strip(), normalizers.Replace("ab", ""), normalizers.NFKC()):
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), dropping])
        assert longest_text(tokenizer, 10) is None
    backend.normalizer = None
    before = backend.pre_tokenizer
    for losing in (pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(" ", "removed")):
        backend.pre_tokenizer = pre_tokenizers.Sequence([losing, before])
        assert longest_text(tokenizer, 10) is None
    backend.pre_tokenizer = before
    backend.add_special_tokens([AddedToken("<|eats|>", rstrip=True)])
    assert longest_text(tokenizer, 10) is None
    backend.model = models.WordLevel({"a": 0}, unk_token="a")
    assert longest_text(tokenizer, 10) is None


def test_what_cannot_fit_is_refused_without_tokenizing(tokenizer, monkeypatch):
    def never(*args):
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(tokenizer, "encode_batch", never)
    with pytest.raises(InvalidRequest, match="resulted in more than 512 tokens") as caught:
        asyncio.run(Prompts(tokenizer, 512, tokenizer.vocab_size).of_texts(["fits", "a" * 10_000_000]))
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_long_prompts_are_tokenized_beside_the_loop(tokenizer, monkeypatch):
    threads = []
    encode = tokenizer.encode_batch

    def noted(*args):
        threads.append(threading.current_thread())
        return encode(*args)

    monkeypatch.setattr(tokenizer, "encode_batch", noted)
    prompts = Prompts(tokenizer, 10_000, tokenizer.vocab_size)
    assert asyncio.run(prompts.of_texts(["a b"])) == [tokenizer.encode("a b")]
    assert threads[0] is threading.main_thread()
    assert asyncio.run(prompts.of_texts(["a b " * 2000])) == [tokenizer.encode("a b " * 2000)]
    assert threads[2] is not threading.main_thread()


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_a_huge_prompt_does_not_hold_up_others(running, route):
    text = "the quick brown fox 123 " * 150_000
    body = {"model": "tiny", "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}

    async def main():
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            asked = time.monotonic()
            huge = asyncio.create_task(client.post(route, json=body))
            slowest = 0.0
            while not huge.done():
                begin = time.monotonic()
                assert (await client.get("/health")).status_code == 200
                slowest = max(slowest, time.monotonic() - begin)
                await asyncio.sleep(0.01)
            answer = await huge
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
            # Where the loop itself did it, somebody would have waited nearly all the time.
            assert slowest < max(2, (time.monotonic() - asked) / 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "name", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "messages", "messages"),
        ("completions", {"prompt": []}, "prompt", "prompt"),
        ("responses", {"input": "x"}, "input", "input"),
    ],
)
def test_a_context_that_is_too_short_is_told_in_openais_words(running, path, body, name, param):
    """LiteLLM and others choose a model with a longer context by them."""

    def ask(length: int) -> dict:
        if path == "completions":
            body["prompt"] = [5] * length
        else:
            # <|im_start|> is one token in any text; the template has the rest of them.
            text = "\n" * (length * 6)
            body.update(
                {"messages": [{"role": "user", "content": text}]} if "messages" in body else {"input": text}
            )
        answer = httpx.post(f"{running.url}/v1/{path}", json={"model": "tiny"} | body, timeout=60)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]

    error = ask(600)
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert re.fullmatch(
        rf"This model's maximum context length is 512 tokens\. However, your {name} resulted in \d+ tokens\. "
        rf"Please reduce the length of the {name}\.",
        error["message"],
    )
    if path == "completions":
        assert (
            "However, you requested 513 tokens (512 in the prompt, 1 in the completion)."
            in ask(512)["message"]
        )


def test_a_text_that_cannot_fit_is_told_in_the_same_words(running):
    message = {"role": "user", "content": "x" * 1_000_000}
    answer = httpx.post(
        f"{running.url}/v1/chat/completions", json={"model": "tiny", "messages": [message]}, timeout=60
    )
    said = answer.json()["error"]["message"]
    assert said.startswith(
        "This model's maximum context length is 512 tokens. However, your messages resulted in more"
    )
