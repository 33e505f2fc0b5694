"""`rondo serve --engine vllm` as it is started by hand, and what is asked of it."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import rondo
from rondo import models
from rondo.base.errors import RondoError
from support.adapters import write_lora
from support.awake import cores_awake
from support.home import own_home
from support.peers import PEERS, peer_python
from support.ports import free_port
from support.processes import children_of
from support.tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PYTHON = PEERS / "vllm" / "bin" / "python"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
)
LONG = 1000
"""Tokens of an answer that is still under way when something happens to it."""
LAYERS = 24
"""Of a model that takes milliseconds a step, so that such an answer takes seconds on any machine."""
SETTINGS = {"dtype": "float32", "max_model_len": 2048, "max_num_seqs": 12, "max_queued": 40, "threads": 1}
SERVER = {"served_model_name": "tiny", "admin_key": "operator"}
EAGER = ["--enforce-eager"]
"""Compiling takes a minute, and the weights are as well updated in what was compiled."""
WAIT = 300


def write_folders(path: Path) -> Path:
    """Two versions of one model, and an adapter. vLLM has no attention on a CPU for heads of 8, the tiny model's."""
    for seed in (0, 1):
        model = tiny_model(
            seed, max_position_embeddings=2048, head_dim=32, hidden_size=64, num_hidden_layers=LAYERS
        )
        models.save(model, path / str(seed))
        tiny_tokenizer().with_chat_template(TEMPLATE).save(path / str(seed))
    write_lora(model, path / "lora", r=8, targets=("q_proj", "v_proj"))
    return path


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
            for child in children_of(parents.pop()):
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
        with (
            cores_awake(),
            rondo.Client(f"http://127.0.0.1:{port}", admin_key="operator") as client,
        ):
            served = Vllm(mode, f"http://127.0.0.1:{port}", process, client, log)
            wait_until_ready(served)
            yield served
    finally:
        process.kill()
        process.wait()


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


@contextmanager
def paused(client: rondo.Client) -> Iterator[None]:
    client.pause("keep")
    try:
        yield
    finally:
        client.resume()


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
