"""vLLM behind our server, as a process of ours and inside the process: what clients and operators ask gets the answers
that our own engine gives."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import rondo
from rondo.base.errors import ConfigError, InvalidRequest, RondoError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import Running, start
from support.processes import alive, wait_until_gone
from support.tiny import VOCAB
from support.vllm import (
    GREEDY,
    LONG,
    PROMPTS,
    SERVER,
    SETTINGS,
    WAIT,
    Asking,
    Vllm,
    choices,
    in_flight,
    paused,
    push,
    serving,
    wait_until_ready,
    without_versions,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ours(folders: Path) -> Iterator[rondo.Client]:
    for running in start(folders / "0", EngineConfig(**SETTINGS), ServerConfig(port=0, **SERVER)):
        with rondo.Client(running.url, admin_key="operator") as client:
            yield client


@pytest.fixture(scope="module", params=["http", "direct"])
def vllm(
    request: pytest.FixtureRequest, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Vllm]:
    with serving(folders / "0", request.param, tmp_path_factory.mktemp("log") / "log") as served:
        yield served
        children = served.children()
        served.process.terminate()
        served.process.wait(60)
        assert not [pid for pid in children if alive(pid)], "vLLM outlived its server"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": PROMPTS},
        {"prompt": PROMPTS, "ignore_eos": True, "logprobs": 3, "max_tokens": 12},
        {"prompt": "the user asks", "n": 2},
        {"stop_token_ids": [201, 172], "max_tokens": 30},
        {"min_tokens": 5, "max_tokens": 6, "logit_bias": {"2": 100}},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
        {"max_tokens": None},
        {"allowed_token_ids": [40, 41, 42, 43], "max_tokens": 8},
        {"bad_words": ["a"], "max_tokens": 12},
        {"prompt_logprobs": 2, "max_tokens": 4},
        {"prompt": "the user asks", "echo": True, "logprobs": 2, "max_tokens": 4},
        {"prompt": "the user asks and the assistant answers", "truncate_prompt_tokens": 4},
        {"best_of": 2, "n": 1, "max_tokens": 6},
        {"stop": ["s", "t"], "include_stop_str_in_output": True},
        {"return_tokens_as_token_ids": True, "logprobs": 1, "max_tokens": 4},
    ],
    ids=lambda body: "-".join(body),
)
def test_the_same_answers(vllm: Vllm, ours: rondo.Client, body: dict[str, Any]) -> None:
    got, wanted = (
        client.complete(**{"prompt": PROMPTS[0]} | GREEDY | body) for client in (vllm.client, ours)
    )
    for mine, its in zip(*map(without_versions, (wanted, got)), strict=True):
        logs = [choice.pop("logprobs") for choice in (mine, its)]
        same_scores(*(choice.pop("prompt_logprobs", None) for choice in (mine, its)))
        assert its == mine
        if logs[0] is not None:
            assert logs[1]["tokens"] == logs[0]["tokens"]
            for name in ("token_logprobs", "top_logprobs"):
                for pair in zip(logs[1][name], logs[0][name], strict=True):
                    assert pair[0] == (None if pair[1] is None else pytest.approx(pair[1], abs=1e-3))
    for name in ("prompt_tokens", "completion_tokens"):
        assert got["usage"][name] == wanted["usage"][name]


def same_scores(ours: list[Any] | None, its: list[Any] | None) -> None:
    """Of prompts: by token, as vLLM tells them."""
    assert (ours is None) == (its is None)
    for mine, other in zip(ours or (), its or (), strict=True):
        assert (mine and mine.keys()) == (other and other.keys())
        for token, entry in (mine or {}).items():
            told = dict(other[token])
            assert told.pop("logprob") == pytest.approx(entry["logprob"], abs=1e-3)
            assert told == {name: value for name, value in entry.items() if name != "logprob"}


def test_openais_client_sees_no_difference(vllm: Vllm, ours: rondo.Client) -> None:
    """The fields of each answer, whole and streamed, and what a program reads from them."""
    said = {"model": "tiny", "temperature": 0, "max_tokens": 6, "seed": 3, "extra_body": {"ignore_eos": True}}
    chat = said | {"messages": [{"role": "user", "content": "add"}], "logprobs": True, "top_logprobs": 1}

    def answers(url: str) -> list[Any]:
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=WAIT) as client:
            whole = client.chat.completions.create(**chat)
            streamed = list(client.chat.completions.create(**chat, stream=True))
            said_last = streamed[-1].choices[0].logprobs
            assert said_last is not None
            assert said_last.content
            del said_last.content[:-1]  # how many tokens come at once is chance
            text = client.completions.create(**said, prompt="the user", logprobs=1, n=2)
            with pytest.raises(openai.BadRequestError) as refused:
                client.completions.create(**said, prompt=[VOCAB])
            return [
                *map(shape, (whole.model_dump(), streamed[-1].model_dump(), text.model_dump())),
                whole.choices[0].message.content,
                "".join(event.choices[0].delta.content or "" for event in streamed if event.choices),
                [choice.text for choice in text.choices],
                text.usage and text.usage.total_tokens,
                refused.value.body,
            ]

    assert answers(vllm.url) == answers(str(ours.base_url))


def shape(value: Any) -> Any:
    """What there is, and of which kind."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value).__name__


def test_chat_streamed_and_whole(vllm: Vllm, ours: rondo.Client) -> None:
    said = {"temperature": 0, "max_tokens": 16, "ignore_eos": True, "logprobs": True, "top_logprobs": 2}
    wanted = ours.chat("add", **said)["choices"][0]
    text = wanted["message"]["content"]
    assert vllm.client.chat("add", **said)["choices"][0]["message"]["content"] == text
    events = list(vllm.client.stream_chat("add", **said))
    assert len(events) > 1
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == text
    tokens = [
        entry["token"]
        for event in events
        for entry in (event["choices"][0]["logprobs"] or {}).get("content", ())
    ]
    assert tokens == [entry["token"] for entry in wanted["logprobs"]["content"]]
    stop = next(piece for piece in text[3:] if piece.isalnum())
    cut, mine = (client.chat("add", **said, stop=stop)["choices"][0] for client in (vllm.client, ours))
    assert (cut["message"], cut["finish_reason"], cut["stop_reason"]) == (mine["message"], "stop", stop)


def test_seeds_and_samples(vllm: Vllm) -> None:
    hot = {"temperature": 1.0, "n": 4, "seed": 7, "ignore_eos": True}
    first = [choice["token_ids"] for choice in choices(vllm.client, **hot)]
    assert len({tuple(tokens) for tokens in first}) == 4
    assert [choice["token_ids"] for choice in choices(vllm.client, **hot)] == first


@pytest.mark.parametrize(
    ("form", "fits"),
    [
        ({"regex": "[0-9]{3}"}, r"\d{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"json_object": True}, r"\{.*"),
    ],
    ids=["regex", "choice", "json"],
)
def test_structured_answers(vllm: Vllm, ours: rondo.Client, form: dict[str, Any], fits: str) -> None:
    for client in (ours, vllm.client):
        [choice] = choices(client, structured_outputs=form, max_tokens=12)
        assert re.fullmatch(fits, choice["text"], re.DOTALL), choice
        assert choice["finish_reason"] == "stop" or "json_object" in form


def test_prefixes_are_found_and_forgotten(vllm: Vllm) -> None:
    def cached() -> int:
        body = GREEDY | {"prompt": [9] * 150, "max_tokens": 2}
        return int(vllm.client.complete(**body)["usage"]["prompt_tokens_details"]["cached_tokens"])

    vllm.client.reset_prefix_cache()
    assert cached() == 0
    assert cached() == 128
    vllm.client.reset_prefix_cache()
    assert cached() == 0


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": [VOCAB]}, 400, "prompt"),
        ({"prompt": [5] * 2048}, 400, "prompt"),
        ({"model": "other"}, 404, "model"),
        ({"temprature": 1}, 400, "temprature"),
        ({"n": 41}, 400, "n"),
    ],
)
def test_errors_are_ours(vllm: Vllm, body: dict[str, Any], status: int, param: str) -> None:
    answer = httpx.post(
        vllm.url + "/v1/completions", json={"model": "tiny", "prompt": [5]} | body, timeout=60
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_what_vllm_does_not_do_is_said(vllm: Vllm) -> None:
    with pytest.raises(InvalidRequest, match="answers, not vectors"):
        vllm.client._call("POST", "/v1/embeddings", {"model": "tiny", "input": "a"})
    with pytest.raises(InvalidRequest, match="only on a GPU"):
        vllm.client.sleep()
    assert vllm.client.is_sleeping() == {"is_sleeping": False}


def test_abort(vllm: Vllm) -> None:
    asking = Asking(vllm)
    vllm.client.abort_requests([asking.events[0]["id"]])
    asking.join(60)
    assert asking.events[-1]["choices"][0]["finish_reason"] == "abort"
    assert len(asking.whole("token_ids")) < LONG
    body = {"model": "tiny", "prompt": [5], "stream": True, "ignore_eos": True, "max_tokens": LONG}
    with httpx.stream("POST", vllm.url + "/v1/completions", json=body, timeout=60):
        pass
    for _ in range(100):
        if not in_flight(vllm):
            return
        time.sleep(0.1)
    raise AssertionError("a client has left, and its request goes on")


def test_pause_keeps_what_runs(vllm: Vllm) -> None:
    asking = Asking(vllm)
    with paused(vllm.client):
        time.sleep(0.3)
        so_far = len(asking.events)
        time.sleep(0.5)
        assert len(asking.events) == so_far
        assert asking.is_alive()
        assert httpx.get(vllm.url + "/ready", timeout=60).status_code == 503
    assert len(asking.whole("token_ids")) == LONG


def test_adapters(vllm: Vllm, ours: rondo.Client, folders: Path) -> None:
    base = choices(ours)[0]["token_ids"]
    for client in (ours, vllm.client):
        client.load_lora_adapter("other", str(folders / "lora"))
    adapted = [choices(client, model="other")[0]["token_ids"] for client in (ours, vllm.client)]
    assert adapted[0] == adapted[1] != base
    assert choices(vllm.client)[0]["token_ids"] == base
    assert vllm.client.models() == ["tiny", "other"]
    for client in (ours, vllm.client):
        client.unload_lora_adapter("other")
    with pytest.raises(RondoError, match="does not exist"):
        choices(vllm.client, model="other")


def test_new_weights_while_requests_run(vllm: Vllm, ours: rondo.Client, folders: Path) -> None:
    """Each token says whose it is; afterwards the answers are those of the new checkpoint, cached prefixes or not."""
    old = choices(ours, prompt=PROMPTS)
    push(ours, folders / "1")
    new = choices(ours, prompt=PROMPTS)
    push(ours, folders / "0")
    assert choices(vllm.client, prompt=PROMPTS) == old != new

    asking = Asking(vllm)
    with paused(vllm.client):
        version = push(vllm.client, folders / "1")
    assert vllm.client.weight_info()["weight_version"] == version
    assert choices(vllm.client, prompt=PROMPTS) == new
    versions = asking.whole("weight_versions")
    assert versions == sorted(versions)
    assert set(versions) == {version - 1, version}
    assert asking.events[-1]["choices"][0]["weight_version"] == version

    with pytest.raises(InvalidRequest, match="not a folder"):
        push(vllm.client, folders / "none")
    assert choices(vllm.client, prompt=PROMPTS) == new
    push(vllm.client, folders / "0")
    assert choices(vllm.client, prompt=PROMPTS) == old


def test_metrics(vllm: Vllm) -> None:
    text = httpx.get(vllm.url + "/metrics", timeout=60).text
    for name in (
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "e2e_request_latency_seconds_count",
        "prefix_cache_queries_total",
        "request_queue_time_seconds_count",
    ):
        value = next(line for line in text.splitlines() if line.startswith(f"rondo:{name}{{"))
        assert float(value.split()[-1]) > 0
    assert "rondo:kv_cache_usage_perc{" in text


def test_a_killed_vllm(vllm: Vllm, ours: rondo.Client, folders: Path) -> None:
    """The last of each mode. As a process of ours it comes back, with the weights it had, until our own
    is killed; inside, the server ends."""
    version = push(vllm.client, folders / "1")
    before = choices(vllm.client, prompt=PROMPTS)
    name = "rondo_vllm_parent" if vllm.mode == "http" else "EngineCore"
    pid = next(pid for pid, line in vllm.children().items() if name in line)
    asking = Asking(vllm)
    os.kill(pid, signal.SIGKILL)
    asking.join(60)
    assert isinstance(asking.error, Unavailable)
    assert asking.error.code == "engine_failed"
    if vllm.mode == "direct":
        assert vllm.process.wait(60) == 1
        return
    with pytest.raises(Unavailable, match="is being started again"):
        choices(vllm.client)
    assert httpx.get(vllm.url + "/health", timeout=60).status_code == 200
    wait_until_ready(vllm)
    assert choices(vllm.client, prompt=PROMPTS) == before
    assert vllm.client.weight_info()["weight_version"] == version

    children = vllm.children()
    vllm.process.kill()
    wait_until_gone(children)


def test_direct_needs_vllms_environment(folders: Path) -> None:
    running: Iterator[Running] = start(folders / "0", EngineConfig(backend="vllm", vllm={"mode": "direct"}))
    with pytest.raises(ConfigError, match="Install Rondo into vLLM's environment"):
        next(running)
