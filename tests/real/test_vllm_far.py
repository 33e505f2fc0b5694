"""RL whose engine is a vLLM that somebody else started: after each push its weights are the learner's."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rondo import models
from rondo.data.packing import Document, pack
from rondo.engine.vllm.plugins import write_plugins
from rondo.graders import Sample, Score
from rondo.rl.config import RlConfig
from rondo.rl.dialects import GENERATE
from rondo.rl.far_config import FarConfig
from rondo.rl.loop import Loop
from rondo.rl.rollout import Step
from rondo.rl.tasks import task
from rondo.text.tokenizer import Tokenizer
from support.awake import cores_awake
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


class Lengths:
    """Pays for nothing that can be learned, so that every group teaches."""

    name, max_tokens = "lengths", 12
    prompts = staticmethod(task("reverse").prompts)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", float(len(sample.completion) % 3))


@pytest.fixture(scope="module")
def vllm(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It is started as by hand, with no more of ours than the plug-in."""
    place = tmp_path_factory.mktemp("vllm-far")
    write_plugins(place)
    port = free_port()
    line = [peer_python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--model", folders / "0"]
    line += [
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--dtype",
        "float32",
        "--enforce-eager",
        "--enable-scale-out",
    ]
    line += ["--max-model-len", 512, "--max-num-seqs", 12, "--weight-transfer-config", '{"backend": "rondo"}']
    own = {"PYTHONPATH": str(place), "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, line)),
            env=os.environ | ENVIRONMENT | own,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def serves() -> bool:
        assert process.poll() is None, (place / "log").read_text()[-4000:]
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success
        except httpx.HTTPError:
            return False

    try:
        with cores_awake():
            wait_until(serves, WAIT)
            yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


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
    told: list[Step] = []
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
