"""Vectors and scores by vLLM behind our server, beside those of our own engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import rondo
from rondo.base.errors import InvalidRequest
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import start
from support.processes import wait_until_gone
from support.vllm import (
    PROMPTS,
    SERVER,
    SETTINGS,
    Vllm,
    choices,
    push,
    serving,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["http", "direct"])
def vectors(
    request: pytest.FixtureRequest, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Vllm, rondo.Client]]:
    """A vLLM for vectors, and our own engine beside it: of one mode those of the last token, of the other means."""
    pooling = {"http": "last", "direct": "mean"}[request.param]
    engine = EngineConfig(**SETTINGS, pooling=pooling)
    flags = ("--engine.vllm.runner=pooling", f"--engine.pooling={pooling}")
    for running in start(folders / "0", engine, ServerConfig(port=0, **SERVER)):
        log = tmp_path_factory.mktemp("log") / "log"
        with (
            rondo.Client(running.url, admin_key="operator") as ours,
            serving(folders / "0", request.param, log, *flags) as served,
        ):
            yield served, ours


def embedded(client: rondo.Client, **body: Any) -> np.ndarray[Any, Any]:
    body = {"model": "tiny", "input": PROMPTS} | body
    return np.array([one["embedding"] for one in client._call("POST", "/v1/embeddings", body)["data"]])


def test_vectors(vectors: tuple[Vllm, rondo.Client], folders: Path) -> None:
    """With and without an adapter, of one version of the weights and the next; and nothing outlives a server that is
    killed."""
    served, ours = vectors
    both = (ours, served.client)

    def same(**body: Any) -> None:
        wanted, got = (embedded(client, **body) for client in both)
        np.testing.assert_allclose(got, wanted, atol=1e-4)

    same()
    same(use_activation=False)
    same(input=[PROMPTS[1] * 2] * 2)
    for client in both:
        client.load_lora_adapter("other", str(folders / "lora"))
    same(model="other")
    body = {"model": "tiny", "query": "add", "documents": ["the user asks", "sort", "add"]}
    for path, given in (
        ("/rerank", body),
        ("/score", {"model": "tiny", "text_1": "add", "text_2": body["documents"]}),
    ):
        name, key = ("results", "relevance_score") if path == "/rerank" else ("data", "score")
        wanted, got = (
            [(one["index"], one[key]) for one in client._call("POST", path, given)[name]] for client in both
        )
        assert [index for index, _ in got] == [index for index, _ in wanted]
        np.testing.assert_allclose([score for _, score in got], [score for _, score in wanted], atol=1e-4)
    for client in both:
        push(client, folders / "1")
    same()
    with pytest.raises(InvalidRequest, match="vectors, not answers"):
        choices(served.client)
    assert httpx.get(served.url + "/metrics", timeout=60).text.count("rondo:prompt_tokens_total{") == 1

    children = served.children()
    served.process.kill()
    wait_until_gone(children)
    assert served.mode == "direct" or not list((served.log.parent / "home" / "run").iterdir())
