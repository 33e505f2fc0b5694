"""vLLM behind our server, as a process of ours and inside the process: what clients and operators ask gets the answers
that our own engine gives."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import rondo
from rondo import models
from rondo.base.errors import ConfigError, InvalidRequest, RondoError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import Running, start
from support.adapters import write_lora
from support.home import own_home
from support.peers import PEERS, peer_python
from support.ports import free_port
from support.tiny import VOCAB, tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = PEERS / "vllm" / "bin" / "python"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
)
LONG = 1000
"""Tokens of an answer that is still under way when something happens to it."""
SETTINGS = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 12, "max_queued": 40, "threads": 1}
SERVER = {"served_model_name": "tiny", "admin_key": "operator"}
EAGER = ["--enforce-eager"]
"""Compiling takes a minute, and the weights are as well updated in what was compiled."""
WAIT = 300


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of one model, and an adapter. vLLM has no attention on a CPU for heads of 8, the tiny model's."""
    path = tmp_path_factory.mktemp("vllm")
    for seed in (0, 1):
        model = tiny_model(max_position_embeddings=2048, seed=seed, head_dim=32, hidden_size=64)
        models.save(model, path / str(seed))
        tiny_tokenizer().with_chat_template(TEMPLATE).save(path / str(seed))
    write_lora(model, path / "lora", r=8, targets=("q_proj", "v_proj"))
    return path


@pytest.fixture(scope="module")
def ours(folders: Path) -> Iterator[rondo.Client]:
    for running in start(folders / "0", EngineConfig(**SETTINGS), ServerConfig(port=0, **SERVER)):
        with rondo.Client(running.url, admin_key="operator") as client:
            yield client


@dataclass
class Vllm:
    """A server of ours, `rondo serve` as it is started by hand, in vLLM's environment for the direct mode."""

    mode: str
    url: str
    process: subprocess.Popen[bytes]
    client: rondo.Client
    log: Path

    def children(self) -> dict[int, str]:
        """vLLM's processes, and what each is called."""
        found: dict[int, str] = {}
        parents = [self.process.pid]
        while parents:
            tasks = Path(f"/proc/{parents.pop()}/task").glob("*/children")
            for child in (int(pid) for task in tasks for pid in task.read_text().split()):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                parents.append(child)
        return found


def command(folder: Path, mode: str, port: int, *more: str) -> list[str]:
    python = [str(PYTHON)] if mode == "direct" else [os.sys.executable]
    flags = [f"--engine.{name}={value}" for name, value in SETTINGS.items()]
    flags += [f"--server.{name}={value}" for name, value in SERVER.items()]
    flags += ["--engine=vllm", f"--engine-mode={mode}", f"--engine.vllm.args={json.dumps(EAGER)}"]
    flags += ["--engine.vllm.adapters=true", "--engine.max_adapter_rank=8", f"--port={port}"]
    flags.append(f"--engine.vllm.python={PYTHON}")
    return [*python, "-m", "rondo.cli", "serve", str(folder), *flags, *more]


@contextmanager
def serving(folder: Path, mode: str, log: Path, *more: str) -> Iterator[Vllm]:
    peer_python("vllm")
    port = free_port()
    own = {
        "PYTHONPATH": str(ROOT / "src"),
        "RONDO_HOME": str(own_home(log.parent / "home")),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(folder, mode, port, *more), env=os.environ | own, stdout=out, stderr=out
        )
    try:
        with rondo.Client(f"http://127.0.0.1:{port}", admin_key="operator") as client:
            served = Vllm(mode, f"http://127.0.0.1:{port}", process, client, log)
            wait_until_ready(served)
            yield served
    finally:
        process.kill()
        process.wait()


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


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_ready(served: Vllm) -> None:
    for _ in range(WAIT * 5):
        if served.process.poll() is not None:
            break
        try:
            # The port is taken before the model is there: whoever asks waits.
            if httpx.get(served.url + "/ready", timeout=5).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(served.log.read_text()[-4000:])


GREEDY = {"temperature": 0, "max_tokens": 24, "return_token_ids": True}
PROMPTS = [[5, 6, 7], list(range(3, 60)), [250] * 9, [100, 101, 7, 7, 7, 299]]


def choices(client: rondo.Client, **body: Any) -> list[dict[str, Any]]:
    return without_versions(client.complete(**{"prompt": PROMPTS[0], "model": "tiny"} | GREEDY | body))


def without_versions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices, but for which version made them: ours and vLLM have had different numbers of updates."""
    return [
        {name: value for name, value in choice.items() if not name.startswith("weight_version")}
        for choice in answer["choices"]
    ]


def push(client: rondo.Client, folder: Path) -> int:
    """As the next version."""
    version = int(client.weight_info()["weight_version"]) + 1
    client.push_weights(folder, version)
    return version


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
        ({"prompt": [5] * 1024}, 400, "prompt"),
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
    with pytest.raises(InvalidRequest, match="GPU only"):
        vllm.client.sleep()
    assert vllm.client.is_sleeping() == {"is_sleeping": False}


def in_flight(served: Vllm) -> int:
    return int(httpx.get(served.url + "/load", timeout=60).json()["server_load"])


class Asking(threading.Thread):
    """A client in the middle of a long answer, of which it has the first tokens."""

    def __init__(self, served: Vllm, **body: Any) -> None:
        super().__init__(daemon=True)
        self.served, self.body = served, body
        self.events: list[dict[str, Any]] = []
        self.error: RondoError | None = None
        self.begun = threading.Event()
        self.start()
        assert self.begun.wait(60)

    def run(self) -> None:
        body = (
            {"prompt": PROMPTS[0], "model": "tiny", "ignore_eos": True}
            | GREEDY
            | {"max_tokens": LONG}
            | self.body
        )
        try:
            with rondo.Client(self.served.url) as client:
                for event in client.stream_complete(**body):
                    self.events.append(event)
                    if len(self.events) > 2:
                        self.begun.set()
        except RondoError as error:
            self.error = error

    def whole(self, name: str) -> list[Any]:
        self.join(WAIT)
        return [each for event in self.events for each in event["choices"][0][name]]


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
    vllm.client.pause("keep")
    time.sleep(0.3)
    so_far = len(asking.events)
    time.sleep(0.5)
    assert len(asking.events) == so_far
    assert asking.is_alive()
    assert httpx.get(vllm.url + "/ready", timeout=60).status_code == 503
    vllm.client.resume()
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
    vllm.client.pause("keep")
    version = push(vllm.client, folders / "1")
    vllm.client.resume()
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
    asking = Asking(vllm)
    name = "rondo_vllm_parent" if vllm.mode == "http" else "EngineCore"
    os.kill(next(pid for pid, line in vllm.children().items() if name in line), signal.SIGKILL)
    asking.join(60)
    assert isinstance(asking.error, Unavailable)
    assert asking.error.code == ("engine_restarting" if vllm.mode == "http" else "engine_failed")
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


def wait_until_gone(processes: dict[int, str]) -> None:
    for _ in range(150):
        if not any(map(alive, processes)):
            return
        time.sleep(0.1)
    raise AssertionError("nobody is left to ask it, and vLLM goes on")


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


def test_direct_needs_vllms_environment(folders: Path) -> None:
    running: Iterator[Running] = start(folders / "0", EngineConfig(backend="vllm", vllm={"mode": "direct"}))
    with pytest.raises(ConfigError, match="Install Rondo into vLLM's environment"):
        next(running)
