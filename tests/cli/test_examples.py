"""The example on each help page works as it is printed, on a smaller model and with fewer steps."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.home import models_dir
from rondo.cli.main import main
from rondo.cli.options.examples import EXAMPLES
from rondo.jobs.job import Job
from support.forks import python
from support.home import own_home
from support.hub import FakeHub
from support.ports import free_port
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import scaled, wait_until

SMALL = "--train.steps=1 --train.max_length=256 --train.tokens_per_step=512 --train.tokens_per_microbatch=256"
SMALLER = {
    **{f"rondo train {kind}": SMALL for kind in ("pretrain", "sft", "preference", "reward")},
    "rondo rl": "--rl.steps=1 --batch=2 --group=2 --rl.max_tokens=4 --rl.eval_prompts=2",
    "rondo demo": "--quick",
    "rondo bench serve": "--num-prompts 2 --input-len 8 --output-len 2",
    "rondo bench throughput": "--num-prompts 2 --input-len 8 --output-len 2",
    "rondo bench latency": "--input-len 8 --output-len 2 --num-iters 1 --num-iters-warmup 0",
}
SERVERS = ("rondo serve",)
ELSEWHERE = (
    *("up", "ps", "logs", "down", "gateway", "keys", "generate", "queue", "registry", "worker"),
    "weights",
    *("batch", "file"),
)
"""Verbs of the service: see `test_service_examples.py`, and `test_up.py` for the processes of `rondo up`."""
REMOTE = tuple(f"rondo job {verb}" for verb in ("submit", "cancel", "pause", "resume", "delete", "exec"))
"""Examples with a gateway, or that replace their process; `test_service_examples.py` parses them."""
FIRST = ("rondo rl", "rondo train sft")
"""Jobs that the examples of other verbs read: `rl` ones the first."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with the model `demo`, and the files that the examples name."""
    folder = tmp_path_factory.mktemp("fresh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(folder / "home")))
        patch.delenv("RONDO_CONFIG", raising=False)
        patch.setenv("HOME", str(folder))
        patch.setenv("HF_HUB_CACHE", str(folder / "hf"))
        (folder / ".rondo").mkdir()
        patch.chdir(folder)
        for path in (models_dir() / "demo", folder / "Qwen3-0.6B"):
            with atomic_dir(path) as model:
                models.save_into(tiny_model(max_position_embeddings=2048, hidden_size=64, head_dim=16), model)
                tiny_tokenizer().save(model)
        chat = [
            {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "yes"}]}
            for i in range(8)
        ]
        pairs = [{"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(8)]
        tasks = [{"prompt": "1 + 1 =", "choices": [" 2", " 3"], "answer": 0}]
        for name, records in (("chat", chat), ("pairs", pairs), ("tasks", tasks)):
            Path(f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        Path("text.txt").write_text("the user asks and the assistant answers\n" * 50)
        yield folder


@pytest.fixture(scope="module")
def jobs(place: Path) -> dict[str, str]:
    """Hashes of an RL job and of a training job."""
    found = {}
    for name in FIRST:
        before = {job.name for job in Job.all()}
        assert run(name) == 0
        (found[name],) = {job.name for job in Job.all()} - before
    return found


def run(name: str, replace: dict[str, str] | None = None) -> int:
    command = f"{EXAMPLES[name].partition(' > ')[0]} {SMALLER.get(name, '')}"
    for old, new in (replace or {}).items():
        command = command.replace(old, new)
    return main(shlex.split(command)[1:])


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[str]:
    port = free_port()
    with serving("rondo serve", port) as url:
        yield url


class serving:
    """The process of an example that serves, until it is left."""

    def __init__(self, name: str, port: int) -> None:
        words = shlex.split(EXAMPLES[name].replace("8001", str(port)))
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([python(), "-m", "rondo", *words[1:]], env=os.environ.copy())

    def __enter__(self) -> str:
        wait_until(self._serves, 240)
        return self.url

    def _serves(self) -> bool:
        assert self.process.poll() is None, "the server ended"
        try:
            return httpx.get(f"{self.url}/health").is_success
        except httpx.TransportError:
            return False

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=scaled(60))


@pytest.fixture
def hub(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub on loopback with the model that is pulled."""
    found = FakeHub()
    found.repo("Qwen/Qwen3-0.6B", place / "Qwen3-0.6B")
    with found.running():
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield


VERBS = dict.fromkeys(
    name.split()[1] for name in EXAMPLES if name not in SERVERS and name.split()[1] not in ELSEWHERE
)


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_a_verb_work(
    verb: str, jobs: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    names = [name for name in EXAMPLES if name.split()[1] == verb and name not in (*FIRST, *REMOTE)]
    for name in names:
        replace = {"JOB": jobs["rondo rl" if verb == "rl" else "rondo train sft"]}
        if name == "rondo bench serve":
            replace["http://127.0.0.1:8001"] = request.getfixturevalue("server")
        if name == "rondo pull":
            request.getfixturevalue("hub")
        assert run(name, replace) == 0, name
