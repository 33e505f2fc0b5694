"""The real `openai` client asks for vectors, and transformers says what they are."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

from rondo.base.errors import InvalidRequest
from rondo.engine.config import EngineConfig
from rondo.models import parse, read_config
from rondo.server.answers.truncation import cut_between
from rondo.server.config import ServerConfig
from rondo.server.routes.embeddings import Dimensions
from server.running import Running, start
from support.engines import slowly
from support.waiting import until

TEXTS = ["abc def", "ghab", "abc def cab"]
SIZE = 32


@pytest.fixture(scope="module")
def peer(model_folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModel.from_pretrained(model_folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def hidden(text: str | list[int]) -> Any:
        ids = tokenizer(text)["input_ids"] if isinstance(text, str) else text
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()

    return hidden


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.fixture
def client(running) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def mean(model_folder) -> Iterator[Running]:
    """Small, of the mean, and cut where asked for."""
    config = ServerConfig(port=0, served_model_name="tiny", matryoshka=True, api_key="secret")
    yield from start(
        model_folder, EngineConfig(max_num_seqs=4, max_model_len=32, max_queued=8, pooling="mean"), config
    )


def test_the_openai_client_gets_transformers_vectors(client, peer):
    """It asks for base64 unless told otherwise."""
    for encoding in (openai.omit, "float"):
        answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=encoding)
        assert [item.index for item in answer.data] == [0, 1, 2]
        for item, text in zip(answer.data, TEXTS, strict=True):
            np.testing.assert_allclose(item.embedding, unit(peer(text)[-1]), atol=2e-6)
        assert answer.model == "tiny"
        assert (
            answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(peer(text)) for text in TEXTS)
        )


def test_texts_and_token_ids_alone_and_in_lists(client, peer):
    def ask(given):
        return [item.embedding for item in client.embeddings.create(model="tiny", input=given).data]

    assert ask("abc def") == ask(["abc def"])
    ids = [70, 71, 72]
    np.testing.assert_allclose(ask(ids), [unit(peer(ids)[-1])], atol=2e-6)
    assert len(ask([ids, [80]])) == 2


def test_base64_is_little_endian_floats(running):
    body = {"model": "tiny", "input": "abc"}
    as_floats, as_text = (
        httpx.post(running.url + "/v1/embeddings", json=body | {"encoding_format": encoding}).json()["data"][
            0
        ]
        for encoding in ("float", "base64")
    )
    given = np.frombuffer(base64.b64decode(as_text["embedding"]), dtype="<f4")
    assert given.tolist() == as_floats["embedding"]


def test_vectors_beside_answers(running, peer):
    async def main():
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
            texts = [f"ab{i} " * (1 + i) for i in range(30)]
            answers = [
                client.completions.create(model="tiny", prompt="abc", max_tokens=30, seed=i) for i in range(8)
            ]
            asked = [client.embeddings.create(model="tiny", input=text) for text in texts]
            *done, _ = await asyncio.gather(*asked, asyncio.gather(*answers))
            for one, text in zip(done, texts, strict=True):
                np.testing.assert_allclose(one.data[0].embedding, unit(peer(text)[-1]), atol=3e-6)

    asyncio.run(main())


def test_the_mean_cut_and_of_length_one_again(mean, peer):
    client = openai.OpenAI(base_url=mean.url + "/v1", api_key="secret", max_retries=0)
    for dimensions in (1, 8, SIZE):
        answer = client.embeddings.create(model="tiny", input="abc def", dimensions=dimensions)
        expected = unit(peer("abc def").mean(0)[:dimensions])
        np.testing.assert_allclose(answer.data[0].embedding, expected, atol=2e-6)
    plain = client.embeddings.create(model="tiny", input="abc def", extra_body={"use_activation": False})
    np.testing.assert_allclose(plain.data[0].embedding, peer("abc def").mean(0), atol=1e-5)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").embeddings.create(model="tiny", input="abc")


def test_prompts_are_cut_where_asked_for(mean, peer):
    client = openai.OpenAI(base_url=mean.url + "/v1", api_key="secret", max_retries=0)
    ids = [70 + i for i in range(40)]

    def ask(**more):
        answer = client.embeddings.create(model="tiny", input=ids, extra_body=more)
        return answer.data[0].embedding, answer.usage.prompt_tokens

    for more, kept in (
        ({"truncate_prompt_tokens": 5}, ids[:5]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, ids[-5:]),
        ({"truncate_prompt_tokens": -1}, ids[:32]),
    ):
        vector, count = ask(**more)
        assert count == len(kept)
        np.testing.assert_allclose(vector, unit(peer(kept).mean(0)), atol=2e-6)
    long = client.embeddings.create(
        model="tiny", input="abc " * 900, extra_body={"truncate_prompt_tokens": 3}
    )
    assert long.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("ids", "own", "right", "left"),
    [
        ([1, 5, 6, 7, 2], [5, 6, 7], [1, 5, 2], [1, 7, 2]),
        ([5, 6, 7, 2], [5, 6, 7], [5, 6, 2], [6, 7, 2]),
        ([5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7], [6, 7, 8]),
        ([1, 1, 5, 2, 2], [5], [1, 1, 5], [5, 2, 2]),
        ([9, 9, 9, 9], [5, 6, 7], [9, 9, 9], [9, 9, 9]),
    ],
)
def test_special_tokens_stay_at_their_ends(ids, own, right, left):
    assert cut_between(ids, own, 3, "right") == right
    assert cut_between(ids, own, 3, "left") == left


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"input": []}, "input", "0 texts"),
        ({"input": ""}, "input", "empty"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": ["", ""]}, "input", "input 0 is empty"),
        ({"input": [[70], [100000]]}, "input", "input 1 has a token id"),
        ({"input": ["a"] * 9}, "input", "1 to 8"),
        ({"input": "abc " * 40}, "input", "32 tokens"),
        ({"input": "abc " * 5000}, "input", "32 tokens"),
        ({"input": [100000]}, "input", "vocabulary"),
        ({"input": [-1]}, "input", "list"),
        ({"input": 5}, "input", "list"),
        ({"input": ["a", [5]]}, "input", "list"),
        ({"dimensions": 33}, "dimensions", "have 32"),
        ({"dimensions": 0}, "dimensions", "0"),
        ({"truncate_prompt_tokens": 33}, "truncate_prompt_tokens", "32"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-2"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 to 32"),
        ({"encoding_format": "hex"}, "encoding_format", "hex"),
        ({"priority": 1}, "priority", "allow_priority"),
        ({"inputs": "a"}, "inputs", "Did you mean input"),
    ],
)
def test_what_is_wrong_is_named(mean, change, param, says):
    body = {"model": "tiny", "input": "abc", **change}
    answer = httpx.post(mean.url + "/v1/embeddings", json=body, headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


def test_vectors_are_cut_only_of_models_made_for_it(client):
    with pytest.raises(openai.BadRequestError, match=r"server\.matryoshka"):
        client.embeddings.create(model="tiny", input="abc", dimensions=8)
    assert len(client.embeddings.create(model="tiny", input="abc", dimensions=SIZE).data[0].embedding) == SIZE
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gpt", input="abc")


@pytest.mark.parametrize(
    ("config", "allowed", "sizes"),
    [
        ({}, False, [32]),
        ({"is_matryoshka": True}, False, [5, 32]),
        ({"matryoshka_dimensions": [8, 16]}, False, [8, 16, 32]),
        ({}, True, [5, 32]),
    ],
)
def test_config_json_says_how_vectors_may_be_cut(model_folder, config, allowed, sizes):
    dimensions = Dimensions.of(parse(read_config(model_folder) | config), allowed)
    for wanted in sizes:
        assert dimensions.check(wanted) == wanted
    if 5 not in sizes:
        with pytest.raises(InvalidRequest, match="dimensions cannot be 5"):
            dimensions.check(5)


def test_leaving_aborts_all_of_them(running, monkeypatch):
    core, metrics = running.engine.core, running.engine.metrics
    before = metrics.finished["abort"]
    monkeypatch.setattr(core.runner, "run", slowly(core.runner.run, 0.05))

    async def main():
        async with httpx.AsyncClient(timeout=30) as client:
            body = {"model": "tiny", "input": [f"ab{i} " * 90 for i in range(40)]}
            task = asyncio.create_task(client.post(running.url + "/v1/embeddings", json=body))
            await until(lambda: core.scheduler.num_waiting)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: metrics.finished["abort"] > before)
        await until(lambda: not core.has_work)
        assert core.pool.used == 0

    asyncio.run(main())


def test_one_that_is_ended_from_outside_is_told_so(running, monkeypatch):
    async def ended(request):
        async for chunk in generate(request):
            chunk.vector = None
            yield chunk

    generate = running.engine.generate
    monkeypatch.setattr(running.engine, "generate", ended)
    answer = httpx.post(running.url + "/v1/embeddings", json={"model": "tiny", "input": "abc"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted")
