"""RL with a vLLM that was started by hand: after each push its weights are the learner's."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

import rondo
from gateway.stub import gateway_of
from rondo import models
from rondo.data.batching.packing import Document, pack
from rondo.engine.vllm.backend import number_of, spread
from rondo.engine.vllm.child.plugins import write_plugins
from rondo.engine.vllm.client import GENERATE
from rondo.models import new
from rondo.models.files.mapping import to_hf
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.rl.rollout.types import RlStep
from rondo.text.tokenizer import Tokenizer
from rondo.weights.config import WeightsConfig
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.serving import VersionServer
from rondo.weights.transports.source import WeightSource
from support.awake import cores_awake
from support.far import Lengths, fleet_of
from support.peers import ENVIRONMENT, peer_python
from support.ports import free_port
from support.served import SOURCES
from support.waiting import wait_until
from worker.running import worker_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

WAIT = 300
CONFIG = RlConfig(
    prompts_per_step=3,
    samples_per_prompt=4,
    steps=2,
    lr=1e-2,
    eval_prompts=4,
    max_tokens=12,
    tokens_per_microbatch=512,
)


class Vllm:
    """A vLLM that is started as by hand, with Rondo's plug-in and sources on its path."""

    def __init__(self, model: Path, place: Path) -> None:
        write_plugins(place)
        self.place, self.port = place, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.line = [peer_python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        self.line += ["--host", "127.0.0.1", "--port", self.port, "--dtype", "float32", "--enforce-eager"]
        self.line += ["--enable-scale-out", "--max-model-len", 512, "--max-num-seqs", 12]
        self.line += ["--weight-transfer-config", '{"backend": "rondo"}']

    def start(self) -> None:
        own = {
            "PYTHONPATH": f"{self.place}{os.pathsep}{SOURCES}",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        }
        with (self.place / "log").open("wb") as log:
            self.process = subprocess.Popen(
                list(map(str, self.line)),
                env=os.environ | ENVIRONMENT | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def serves(self) -> bool:
        assert self.process.poll() is None, (self.place / "log").read_text()[-4000:]
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()


@pytest.fixture(scope="module")
def started(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    vllm = Vllm(folders / "0", tmp_path_factory.mktemp("vllm-far"))
    vllm.start()
    try:
        with cores_awake():
            wait_until(vllm.serves, WAIT)
            yield vllm
    finally:
        vllm.kill()


@pytest.fixture
def vllm(started: Vllm) -> str:
    """Its URL."""
    return started.url


def logprobs_there(url: str, model: Path, prompt: list[int]) -> list[float]:
    """Of the prompt's tokens, by the weights that vLLM has."""
    params = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0, "detokenize": False}
    body = {"model": str(model), "token_ids": prompt, "sampling_params": params}
    said = httpx.post(url + GENERATE, json=body, timeout=60).raise_for_status().json()["prompt_logprobs"]
    return [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], said[1:], strict=True)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_two_steps(vllm: str, folders: Path, mode: str) -> None:
    model, tokenizer = models.load(folders / "0"), Tokenizer.load(folders / "0")
    config = CONFIG.model_copy(update={"mode": mode, "engine": FarConfig(url=(vllm,), wait=30)})
    loop = Loop(model, tokenizer, Lengths(), config)
    told: list[RlStep] = []
    loop.observers.append(told.append)
    assert [engine.transport for engine in fleet_of(loop).engines] == ["shm"]
    first, prompt = loop.version, list(range(20, 60))
    seen = []
    for done in range(2):
        metrics = loop.step()
        assert metrics["updates"] == 1
        assert metrics["engine/lost"] == 0
        if mode == "sync":
            assert metrics["logprob_diff_max"] < 1e-3, "the learner's weights made the answers"
        versions = {v for group in told[-1].groups for each in group.samples for v in each.versions}
        assert versions <= {first, first + done}
        there = logprobs_there(vllm, folders / "0", prompt)
        (here,) = loop.learner.logprobs(pack([Document(prompt, [0.0] + [1.0] * (len(prompt) - 1))], 512))
        assert there == pytest.approx(here.tolist(), abs=1e-3)
        seen.append(there)
    assert max(abs(a - b) for a, b in zip(*seen, strict=True)) > 0.05, "each push changed the weights"
    loop.close()


@dataclass(frozen=True)
class Output:
    tokens: list[int]
    versions: list[int]


def output_of(url: str, model: Path, count: int = 24) -> Output:
    params = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "detokenize": False}
    body = {"model": str(model), "token_ids": list(range(20, 40)), "sampling_params": params}
    (choice,) = httpx.post(url + GENERATE, json=body, timeout=120).raise_for_status().json()["choices"]
    return Output(choice["token_ids"], list(spread(choice["weight_versions"]) or ()))


def test_its_output_changes_exactly_when_its_version_does(vllm: str, folders: Path) -> None:
    """Versions come alternately from a segment and over HTTP while requests run."""
    config = json.loads((folders / "0" / "config.json").read_text())
    settings = WeightsConfig(bucket_bytes=50_000)
    publisher, server = Publisher("policy", config, settings), VersionServer("policy", "127.0.0.1")
    stop, found, reference = threading.Event(), list[Output](), dict[int, Output]()

    def ask() -> None:
        while not stop.is_set():
            found.append(output_of(vllm, folders / "0"))

    def answered(version: int) -> bool:
        """Whether a request ran with this version alone; the first version may have another name."""
        return any(version == initial or set(each.versions) == {version} for each in list(found))

    with rondo.Client(vllm, admin_key="none") as client, ThreadPoolExecutor(1) as aside:
        initial = version = number_of(str(client.weight_info()["weight_version"]))
        client.init_weight_transfer_engine()
        asking = aside.submit(ask)
        try:
            for seed in range(1, 5):
                wait_until(lambda version=version: answered(version) or asking.done(), WAIT)
                version += 1
                publisher.register(lambda seed=seed: (Shard(*each) for each in to_hf(new(config, seed=seed))))
                publisher.push(version)
                server.offer(WeightSource.parse(publisher.source).folder, version)
                source = publisher.source if seed % 2 else server.source
                client.pause("keep")
                client.send_weights({"source": source}, version)
                client.resume()
                reference[version] = output_of(vllm, folders / "0")
        finally:
            stop.set()
            asking.result()
            server.close()
            publisher.close()
    assert all(set(each.versions) == {number} for number, each in reference.items())
    assert len({tuple(each.tokens) for each in reference.values()}) == len(reference)
    whole = [each for each in found if len(set(each.versions)) == 1 and each.versions[0] in reference]
    assert len({each.versions[0] for each in whole}) >= 2
    assert all(each.tokens == reference[each.versions[0]].tokens for each in whole)
    for each in found:
        assert each.versions == sorted(each.versions)
        first = each.versions.count(each.versions[0])
        if each.versions[0] in reference:
            assert each.tokens[:first] == reference[each.versions[0]].tokens[:first]


def test_a_worker_beside_it_answers_queued_requests(vllm: str, folders: Path, tmp_path: Path) -> None:
    """Of a gateway that cannot reach it."""
    model, options = str(folders / "0"), {"max_tokens": 8, "temperature": 0}
    with (
        gateway_of([], tmp_path) as gateway,
        worker_of(gateway.url, vllm),
        rondo.Client(gateway.url) as client,
    ):
        results = client.generate([f"number {n}" for n in range(40)], model, **options)
    assert [each["error"] for each in results] == [None] * 40
    for number in (0, 39):
        body = {"model": model, "prompt": f"number {number}", **options}
        alone = httpx.post(f"{vllm}/v1/completions", json=body, timeout=60).raise_for_status().json()
        assert results[number]["response"] == alone["choices"][0]["text"]


def test_killed_while_it_generates_it_is_waited_for_and_has_the_weights_again(
    started: Vllm, folders: Path
) -> None:
    """The last of this module: it leaves another process behind."""
    model, tokenizer = models.load(folders / "0"), Tokenizer.load(folders / "0")
    far = FarConfig(url=(started.url,), wait=WAIT)
    loop = Loop(model, tokenizer, Lengths(), CONFIG.model_copy(update={"engine": far, "max_tokens": 400}))
    loop.step()

    def kill() -> None:
        wait_until(lambda: fleet_of(loop).engines[0].requests)
        started.kill()
        started.start()

    with ThreadPoolExecutor(1) as aside:
        killed = aside.submit(kill)
        metrics = loop.step()
        killed.result()
    assert metrics["engine/lost"] == 1
    assert metrics["engine/asked_again"] >= 1
    assert metrics["updates"] == 1
    assert metrics["logprob_diff_max"] < 1e-3, "the new process had the weights of the step before"
    prompt = list(range(20, 60))
    (here,) = loop.learner.logprobs(pack([Document(prompt, [0.0] + [1.0] * (len(prompt) - 1))], 512))
    assert logprobs_there(started.url, folders / "0", prompt) == pytest.approx(here.tolist(), abs=1e-3)
    loop.close()
