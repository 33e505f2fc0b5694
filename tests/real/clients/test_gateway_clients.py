"""Client libraries, unmodified, against a gateway with keys in front of a real engine: equal results, and each token
counted once."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from real.clients.plain import KEY, post
from real.clients.test_chat_clients import (
    ASK,
    HERE,
    QUIET,
    SECONDS,
    TEXTS,
    check_calls,
    check_structured,
    check_vectors,
    text,
    vectors,
)
from support.home import own_home
from support.peers import run_peer
from support.ports import free_port
from support.served import SOURCES, Served
from support.waiting import run, scaled, wait_until

__all__ = ["text", "vectors"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


class Gateway:
    def __init__(self, engine: Served, folder: Path) -> None:
        self.folder = own_home(folder)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "rondo.cli", "gateway", engine.url]
        env = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "RONDO_HOME": str(folder),
            "RONDO_GATEWAY_ENGINE_KEY": KEY,
        }
        with (folder / "log").open("wb") as out:
            self.process = subprocess.Popen(
                [*command, f"--port={port}", "--keys=required"], env=env, stdout=out, stderr=out
            )
        wait_until(self._ready, 120)
        self.key = (folder / "admin-key").read_text().strip()

    def _ready(self) -> bool:
        try:
            return httpx.get(self.url + "/ready", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def usage(self) -> list[int]:
        headers = {"authorization": f"Bearer {self.key}"}
        rows = httpx.get(self.url + "/v1/usage", headers=headers, timeout=60).json()["data"]
        return [sum(row[f"{kind}_tokens"] for row in rows) for kind in ("input", "output")]

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(scaled(60)) == 0


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(served, tmp_path_factory.mktemp("gateway"))
    yield made
    made.end()


def peer(name: str, *arguments: str) -> dict[str, Any]:
    said = run_peer(name, HERE / f"_{name}.py", *arguments, seconds=scaled(SECONDS), **QUIET)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def check_usage(gateway: Gateway, before: list[int], usage: list[int], embedded: int) -> None:
    wanted = [before[0] + usage[0] + embedded, before[1] + usage[1]]
    wait_until(lambda: gateway.usage() == wanted)


@pytest.fixture(scope="module")
def embedded(served: Served) -> int:
    """Tokens of the prompts that the clients embed."""
    tokens: int = post(served.url, "/v1/embeddings", input=TEXTS)["usage"]["prompt_tokens"]
    return tokens


def test_langchain(gateway: Gateway, text: str, vectors: list[list[float]], embedded: int) -> None:
    before = gateway.usage()
    found = peer("langchain", gateway.url, gateway.key)
    assert [found[name] for name in ("chat", "stream", "async", "responses")] == [text] * 4
    assert found["batch"] == [text] * 2
    check_calls(found["calls"], 2)
    assert found["after"]
    check_structured(found["structured"], 3)
    check_vectors(found["vectors"], vectors)
    check_usage(gateway, before, found["usage"], embedded)


def test_litellm(
    gateway: Gateway, short: Served, text: str, vectors: list[list[float]], tmp_path: Path
) -> None:
    """Its fallback goes from a model with a short context to one with a long context: both need the same key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_STORE_URL", f"sqlite:///{gateway.folder / 'rondo.db'}")
        (tmp_path / "second").mkdir()
        (tmp_path / "second" / "admin-key").write_text(gateway.key)
        other = Gateway(short, tmp_path / "second")
    try:
        found = peer("litellm", gateway.url, other.url, gateway.key)
    finally:
        other.end()
    assert found["chat"] == [text] * 4
    assert found["async"] == text
    check_calls(found["calls"], 2)
    assert found["after"]
    check_structured(found["structured"], 2)
    check_vectors(found["vectors"], vectors)
    assert ["maximum context length is 256 tokens" in said for said in found["exceeded"]] == [True] * 2
    assert found["fallback"] == found["direct"]


def test_openai(gateway: Gateway, text: str, vectors: list[list[float]], embedded: int) -> None:
    before, counted = gateway.usage(), [0, 0]
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=120)
    asked: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 20, "temperature": 0}

    def count(usage: Any) -> None:
        counted[0] += getattr(usage, "prompt_tokens", None) or usage.input_tokens
        counted[1] += getattr(usage, "completion_tokens", None) or usage.output_tokens

    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    answer = client.chat.completions.create(**asked)
    count(answer.usage)
    assert answer.choices[0].message.content == text
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**asked, **options))
    count(chunks[-1].usage)
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
    completion = client.completions.create(model="tiny", prompt="How is", max_tokens=20, temperature=0)
    count(completion.usage)
    plain: dict[str, Any] = {"model": "tiny", "input": ASK, "max_output_tokens": 20, "temperature": 0}
    response = client.responses.create(**plain)
    count(response.usage)
    with client.responses.stream(**plain) as stream:
        events = list(stream)
    assert events[-1].type == "response.incomplete"  # at its maximum of tokens
    count(events[-1].response.usage)
    assert response.output_text == events[-1].response.output_text == text
    found = client.embeddings.create(model="tiny", input=TEXTS)
    check_vectors([each.embedding for each in found.data], vectors)

    async def many() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=120
        ) as other:
            return await asyncio.gather(*(other.chat.completions.create(**asked) for _ in range(4)))

    for each in run(many()):
        count(each.usage)
        assert each.choices[0].message.content == text
    check_usage(gateway, before, counted, embedded)


def test_openai_errors_of_the_engine(gateway: Gateway) -> None:
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key=gateway.key, max_retries=0, timeout=120)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK, temperature=-1)  # type: ignore[arg-type]
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="a " * 60_000)
    assert long.value.code in ("context_length_exceeded", None)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)  # type: ignore[arg-type]
