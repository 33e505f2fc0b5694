"""OpenAI servers of one model on loopback, ours and the peers', each a process group that is stopped between its turns:
threads that wait by spinning would take a core from whoever is asked next."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import peers
from common import THREADS, free_port

MODEL = "model"
"""Its name on every server."""


@dataclass(frozen=True)
class Setting:
    """What all sides are given alike."""

    folder: Path
    context: int
    requests: int
    dtype: str
    """Of the weights, where the processor multiplies in it; peers that would emulate it take fp32."""


@dataclass(frozen=True)
class Command:
    line: list[object]
    environment: dict[str, str] = field(default_factory=lambda: peers.environment({}))


def rondo(given: Setting) -> Command:
    flags = ["--dtype", given.dtype, "--max-num-seqs", given.requests, "--max-model-len", given.context]
    flags += ["--served-model-name", MODEL, "--threads", THREADS, "--no-enable-prefix-caching"]
    line = [sys.executable, "-m", "rondo.cli", "serve", given.folder, *flags, "--log.level=error"]
    return Command(line, dict(os.environ))


def vllm(given: Setting) -> Command:
    """Compiled, as is its default."""
    flags = ["--dtype", given.dtype, "--max-num-seqs", given.requests, "--max-model-len", given.context]
    flags += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--no-enable-prefix-caching"]
    line = [
        peers.python_of("vllm"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        given.folder,
        *flags,
    ]
    space = {"VLLM_CPU_KVCACHE_SPACE": "4"}
    return Command(line, peers.environment(peers.vllm_environment() | space))


def transformers(given: Setting) -> Command:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise peers.Absent("transformers is not installed: make lint") from None
    script = Path(__file__).with_name("_transformers_server.py")
    flags = ["--dtype", given.dtype, "--batch", given.requests, "--threads", THREADS]
    return Command([sys.executable, script, given.folder, *flags])


def llama_cpp(given: Setting) -> Command:
    """Its own server, a place for each request; keys and values in 16 bits, as is its default."""
    server = peers.python_of("llama_server").with_name("llama-server")
    file = peers.gguf(given.folder, given.dtype)
    flags = ["--alias", MODEL, "--parallel", given.requests, "--ctx-size", given.requests * given.context]
    flags += ["--threads", THREADS, "--host", "127.0.0.1", "--no-webui"]
    return Command([server, "--model", file, *flags])


SIDES = {"rondo": rondo, "vllm": vllm, "transformers": transformers, "llama.cpp": llama_cpp}


class Served(peers.Group):
    """One side's server, from its start until it is left; it runs only while it is `awake`."""

    def __init__(self, name: str, command: Command) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        line = [*command.line, "--port", port]
        super().__init__(name, line, command.environment, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.signal(signal.SIGSTOP)
        return self

    def _wait(self) -> None:
        """Until it has answered, which also compiles what is compiled at first use."""
        until = time.monotonic() + peers.SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise self.ended()
            with suppress(OSError):
                self.greedy([65, 66, 67], 2)
                return
            time.sleep(0.2)
        raise peers.Absent(f"{self.name} did not answer within {peers.SECONDS} s")

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest tokens, in a field of vLLM's; llama.cpp names them on a route of its own alone."""
        llama = self.name == "llama.cpp"
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True}
        body |= {"n_predict": count, "return_tokens": True} if llama else {}
        body |= {} if llama else {"max_tokens": count, "return_token_ids": True}
        answer = self._ask("/completion" if llama else "/v1/completions", body)
        return list(answer["tokens"] if llama else answer["choices"][0]["token_ids"])

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=peers.SECONDS) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise  # it still loads
            raise peers.Absent(f"{self.name} answers {error.code}: {error.read().decode()[:300]}") from None
