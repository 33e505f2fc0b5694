"""RL whose engine is a vLLM that somebody else started: after each push its weights are the learner's."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from rondo import models
from rondo.data.batching.packing import Document, pack
from rondo.engine.vllm.child.plugins import write_plugins
from rondo.engine.vllm.client import GENERATE
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.rl.rollout.types import RlStep
from rondo.text.tokenizer import Tokenizer
from support.awake import cores_awake
from support.far import Lengths, fleet_of
from support.peers import ENVIRONMENT, peer_python
from support.ports import free_port
from support.waiting import wait_until

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
    """One that is started as by hand, with no more of ours than the plug-in."""

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
            "PYTHONPATH": str(self.place),
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
