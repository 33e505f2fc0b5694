"""Client libraries against a server process: chats, streams, tools, structured output and embeddings.

The weights are random and the temperature is 0, so each text can be compared with the server's answer to a plain HTTP
request; calls and JSON are constrained to their schemas."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from real.clients.plain import KEY, counted, post
from support.peers import PEERS, run_peer
from support.served import Served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ASK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How is the weather in Paris?"},
]
TEXTS = ["sunny", "rainy"]
QUIET = {"LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
SECONDS = 200


@pytest.fixture(scope="module")
def text(served: Served) -> str:
    """The answer to `ASK`."""
    answer = post(served.url, "/v1/chat/completions", messages=ASK, max_tokens=20, temperature=0)
    return answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def vectors(served: Served) -> list[list[float]]:
    return [each["embedding"] for each in post(served.url, "/v1/embeddings", input=TEXTS)["data"]]


def run(client: str, *urls: str) -> dict[str, Any]:
    said = run_peer(client, HERE / f"_{client}.py", *urls, KEY, seconds=SECONDS, **QUIET)
    return json.loads(said.splitlines()[-1])


def check_calls(calls: list[Any], count: int) -> None:
    assert len(calls) == count
    for name, arguments in calls:
        assert name == "get_weather"
        assert arguments["city"] in ("Paris", "Rome")


def check_structured(answers: list[Any], count: int) -> None:
    assert len(answers) == count
    for answer in answers:
        assert answer.keys() == {"city", "degrees"}
        assert answer["city"] in ("Paris", "Rome")
        assert answer["degrees"] in range(10)


def check_vectors(found: list[list[float]], vectors: list[list[float]]) -> None:
    assert len(found) == len(vectors)
    for one, other in zip(found, vectors):
        assert one == pytest.approx(other, abs=1e-6)


def check_usage(url: str, before: list[int], usage: list[int], embedded: bool = True) -> None:
    """The client's sums are the server's counters, apart from the prompts that were embedded."""
    prompt, answer = (now - then for now, then in zip(counted(url), before))
    beside = post(url, "/v1/embeddings", input=TEXTS)["usage"]["prompt_tokens"] if embedded else 0
    assert usage == [prompt - beside, answer]


def test_langchain(served: Served, text: str, vectors: list[list[float]]) -> None:
    before = counted(served.url)
    found = run("langchain", served.url)
    check_usage(served.url, before, found["usage"])
    assert [found[name] for name in ("chat", "stream", "async", "responses")] == [text] * 4
    assert found["batch"] == [text] * 2
    check_calls(found["calls"], 2)
    assert found["results"] == [f"{found['calls'][0][1]['city']}: sunny"]
    assert found["after"]
    check_structured(found["structured"], 3)
    check_vectors(found["vectors"], vectors)


def test_llamaindex(served: Served, text: str, vectors: list[list[float]]) -> None:
    found = run("llamaindex", served.url)
    assert [found["chat"], found["stream"]] == [text] * 2
    plain = post(served.url, "/v1/completions", prompt="How is", max_tokens=20, temperature=0)
    assert [found["complete"], found["stream_complete"]] == [plain["choices"][0]["text"]] * 2
    check_calls(found["calls"], 2)
    assert found["after"]
    check_structured(found["structured"], 1)
    check_vectors(found["vectors"], vectors)


def test_pydantic_ai(served: Served, text: str) -> None:
    before = counted(served.url)
    found = run("pydantic_ai", served.url)
    check_usage(served.url, before, found["usage"], embedded=False)
    assert [found[name] for name in ("chat", "stream", "responses")] == [text] * 3
    check_calls(found["calls"], 1)
    check_structured(found["structured"], 5)


def test_instructor(served: Served) -> None:
    found = run("instructor", served.url)
    check_structured(found["structured"], 3)
    check_structured(found["streamed"], 3)
    check_structured([found["again"]], 1)
    assert found["tries"] == 2


def test_litellm(served: Served, short: Served, text: str, vectors: list[list[float]]) -> None:
    before = counted(served.url)
    found = run("litellm", served.url, short.url)
    check_usage(served.url, before, found["usage"])
    assert found["chat"] == [text] * 4
    assert found["async"] == text
    check_calls(found["calls"], 2)
    assert found["after"]
    check_structured(found["structured"], 2)
    check_vectors(found["vectors"], vectors)
    assert ["maximum context length is 256 tokens" in said for said in found["exceeded"]] == [True] * 2
    assert found["fallback"] == found["direct"]
    assert len(found["direct"]) == 2


def test_vercel(served: Served, text: str, vectors: list[list[float]], tmp_path: Path) -> None:
    """Node finds packages beside a script, so it is copied beside a link to those that were installed."""
    packages = PEERS / "vercel" / "node_modules"
    assert packages.is_dir(), f"vercel is not installed in {PEERS}: run `bash tests/real/setup.sh`"
    (tmp_path / "node_modules").symlink_to(packages)
    script = shutil.copy(HERE / "_vercel.mjs", tmp_path)
    before = counted(served.url)
    done = subprocess.run(
        ["node", script, served.url, KEY],
        env=os.environ | {"NODE_OPTIONS": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    check_usage(served.url, before, found["usage"])
    assert [found["chat"], found["stream"]] == [text] * 2
    check_calls(found["calls"], 2)
    assert found["steps"][0] == "tool-calls"
    check_structured(found["structured"], 2)
    check_vectors(found["vectors"], vectors)
