"""How near texts are: the cosine of transformers' hidden states."""

from contextlib import aclosing

import httpx
import numpy as np
import pytest

from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.routes.test_embeddings import peer, unit
from server.running import start

__all__ = ["peer"]

QUERY, DOCUMENTS = "abc def", ["ghab", "abc def cab", "abc def", "h"]


@pytest.fixture(scope="module")
def client(model_folder):
    config = ServerConfig(port=0, served_model_name="tiny", api_key="secret")
    for running in start(model_folder, EngineConfig(max_num_seqs=4, max_model_len=64, max_queued=8), config):
        with httpx.Client(base_url=running.url, headers={"Authorization": "Bearer secret"}) as client:
            yield client


@pytest.fixture
def cosines(peer):
    return [float(unit(peer(QUERY)[-1]) @ unit(peer(document)[-1])) for document in DOCUMENTS]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_one_text_beside_many(client, peer, cosines, path, names):
    answer = client.post(path, json={"model": "tiny", names[0]: QUERY, names[1]: DOCUMENTS}).json()
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    np.testing.assert_allclose([item["score"] for item in answer["data"]], cosines, atol=3e-6)
    assert answer["usage"]["prompt_tokens"] == sum(len(peer(text)) for text in [QUERY, *DOCUMENTS])
    assert (answer["object"], answer["model"]) == ("list", "tiny")


def test_pairs(client, peer):
    answer = client.post("/score", json={"text_1": DOCUMENTS[::-1], "text_2": DOCUMENTS}).json()
    expected = [
        unit(peer(a)[-1]) @ unit(peer(b)[-1]) for a, b in zip(DOCUMENTS[::-1], DOCUMENTS, strict=True)
    ]
    np.testing.assert_allclose([item["score"] for item in answer["data"]], expected, atol=3e-6)
    one = client.post("/score", json={"text_1": "abc", "text_2": "abc"}).json()
    assert one["data"][0]["score"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_nearest_come_first(client, cosines, path):
    body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS}
    answer = client.post(path, json=body).json()
    order = sorted(range(4), key=lambda i: -cosines[i])
    assert order[0] == 2
    assert [result["index"] for result in answer["results"]] == order
    for result in answer["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
        assert result["relevance_score"] == pytest.approx(cosines[result["index"]], abs=3e-6)
    two = client.post(path, json=body | {"top_n": 2, "return_documents": False}).json()["results"]
    assert [set(result) for result in two] == [{"index", "relevance_score"}] * 2


def test_each_side_has_its_limit(client):
    body = {
        "text_1": "abc def",
        "text_2": "abc def " * 40,
        "max_tokens_per_query": 1,
        "max_tokens_per_doc": 3,
    }
    assert client.post("/score", json=body).json()["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/score", {}, 400, "text_1"),
        ("/score", {"text_1": "a"}, 400, "text_1"),
        ("/score", {"text_1": "a", "documents": "b"}, 400, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400, "text_1"),
        ("/score", {"text_1": [], "text_2": []}, 400, "text_2"),
        ("/score", {"text_1": "a", "text_2": ["a"] * 9}, 400, "text_2"),
        ("/score", {"text_1": "", "text_2": "a"}, 400, "text_1"),
        ("/score", {"text_1": "a", "text_2": "abc " * 70}, 400, "text_2"),
        ("/score", {"text_1": "a", "text_2": {"content": []}}, 400, "text_2"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "x"}, 400, "instruction"),
        ("/score", {"text_1": "a", "text_2": "b", "model": "gpt"}, 404, "model"),
        ("/rerank", {"query": "a"}, 400, "documents"),
        ("/rerank", {"query": "a", "documents": []}, 400, "documents"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, 400, "top_n"),
        ("/rerank", {"query": ["a"], "documents": ["a"]}, 400, "query"),
    ],
)
def test_what_is_wrong_is_named(client, path, body, status, param):
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_they_need_the_key(client, path):
    assert client.post(path, json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_both_sides_are_computed_together_once_all_texts_are_checked(model_folder, monkeypatch):
    config, engine = ServerConfig(port=0), EngineConfig(max_num_seqs=4, max_model_len=64, max_queued=8)
    for running in start(model_folder, engine, config):
        asked, begun, generate = [], [], running.engine.generate

        async def counted(request, generate=generate, asked=asked, begun=begun):
            asked.append(request.id)
            async with aclosing(generate(request)) as chunks:
                async for chunk in chunks:
                    begun.append(len(asked))
                    yield chunk

        monkeypatch.setattr(running.engine, "generate", counted)
        url = running.url + "/score"
        refused = httpx.post(url, json={"text_1": QUERY, "text_2": [*DOCUMENTS, "abc " * 70]})
        assert (refused.status_code, asked) == (400, [])
        assert httpx.post(url, json={"text_1": QUERY, "text_2": DOCUMENTS}).status_code == 200
        assert (len(asked), begun[0]) == (5, 5)
        assert httpx.post(url, json={"text_1": ["a"] * 8, "text_2": ["b"] * 8}).status_code == 200
