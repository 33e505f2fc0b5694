"""A batch from its upload to its results, on SQLite: 100,000 requests against an engine that answers at once, with a
gateway and a worker in processes of their own; and requests against a model, compared with `LLM.generate` offline.

Run it with `--model NAME` for the second part; `demo` is what `rondo demo` makes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import openai

from common import Report, arguments, cpu_seconds, free_port, say

CHAT: Final = "/v1/chat/completions"
LINES, QUICK_LINES = 100_000, 500
PROMPTS, QUICK_PROMPTS, TOKENS = 2048, 8, 64


@contextmanager
def process(home: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    home.mkdir(parents=True, exist_ok=True)
    started = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"RONDO_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(home / "log").open("ab"),
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()


def listening(client: openai.OpenAI, model: str) -> None:
    """Waits until the gateway lists the model."""
    end = time.monotonic() + 600
    while True:
        try:
            if model in [card.id for card in client.models.list()]:
                return
        except openai.APIError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"the gateway lists no model {model!r}")
        time.sleep(0.2)


def working(url: str) -> None:
    """Waits until a worker leases requests."""
    end = time.monotonic() + 600
    while not httpx.get(f"{url}/v1/queue/workers", timeout=60).json()["data"]:
        if time.monotonic() > end:
            raise TimeoutError("no worker reached the gateway")
        time.sleep(0.2)


def jsonl(lines: int, model: str, **fields: Any) -> bytes:
    def one(number: int) -> bytes:
        body = {"model": model, "messages": [{"role": "user", "content": prompt(number)}], **fields}
        line = {"custom_id": f"request-{number}", "method": "POST", "url": CHAT, "body": body}
        return json.dumps(line).encode() + b"\n"

    return b"".join(one(number) for number in range(lines))


def prompt(number: int) -> str:
    return f"Write a sentence about the number {number}. " * 4


def run(client: openai.OpenAI, content: bytes) -> dict[str, float]:
    """Seconds of each stage."""
    begun = time.perf_counter()
    file = client.files.create(file=("batch.jsonl", content), purpose="batch")
    uploaded = time.perf_counter()
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    ended = time.perf_counter()
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 0, batch
    assert batch.output_file_id is not None
    text = client.files.content(batch.output_file_id).read()
    assert text.count(b"\n") == content.count(b"\n")
    return {
        "upload": uploaded - begun,
        "batch": ended - uploaded,
        "download": time.perf_counter() - ended,
    }


def peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def against_a_stub(report: Report, lines: int, home: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        client = stack.enter_context(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0))
        engine = stack.enter_context(process(home, str(Path(__file__).with_name("_stub_engine.py"))))
        assert engine.stdout is not None
        at = engine.stdout.readline().strip()
        gateway = stack.enter_context(process(home, "-m", "rondo.cli", "gateway", at, f"--port={port}"))
        listening(client, "stub")
        idle = peak_megabytes(gateway.pid)
        flags = [f"--worker.gateway={url}", f"--worker.engine={at}"]
        worker = stack.enter_context(process(home, "-m", "rondo.cli", "worker", *flags))
        working(url)
        content = jsonl(lines, "stub", max_tokens=64)
        say(f"{lines:,} requests, {len(content) / 1e6:.0f} MB")
        parts = {"gateway": gateway, "worker": worker, "stub engine": engine}
        before = {name: cpu_seconds(part.pid) for name, part in parts.items()}
        took = run(client, content)
        report.ours |= {
            f"CPU ms a line, {name}": 1000 * (cpu_seconds(part.pid) - before[name]) / lines
            for name, part in parts.items()
        }
        report.ours |= {
            "upload, MB/s": len(content) / 1e6 / took["upload"],
            "requests/s, end to end": lines / (took["upload"] + took["batch"]),
            "gateway's peak memory, MB": peak_megabytes(gateway.pid),
        }
        report.notes.append(f"{lines:,} requests; the idle gateway has {idle:.0f} MB; seconds: {took}")


def against_a_model(report: Report, model: str, prompts: int, home: Path) -> None:
    from rondo.base.storage.home import cache_dir
    from rondo.client.types import SamplingParams
    from rondo.engine.entrypoints.llm import LLM
    from rondo.models.store import resolve

    model = str(resolve(model))  # the server has a home of its own
    home.mkdir(parents=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    (home / "cache").symlink_to(cache_dir())  # of compiled kernels
    fields = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    llm = LLM(model)
    messages = [[{"role": "user", "content": prompt(number)}] for number in range(prompts)]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    llm.chat(messages[:2], params)
    begun = time.perf_counter()
    llm.chat(messages, params)
    offline = prompts / (time.perf_counter() - begun)
    del llm
    port, engine_port = free_port(), free_port()
    url, at = (f"http://127.0.0.1:{each}" for each in (port, engine_port))
    with ExitStack() as stack:
        client = stack.enter_context(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0))
        stack.enter_context(process(home, "-m", "rondo.cli", "gateway", at, f"--port={port}"))
        flags = [f"--port={engine_port}", f"--worker.gateway={url}"]
        stack.enter_context(process(home, "-m", "rondo.cli", "serve", model, *flags))
        name = Path(model).name
        listening(client, name)
        working(url)
        run(client, jsonl(2, name, **fields))
        took = run(client, jsonl(prompts, name, **fields))
        report.ours["requests/s, model"] = prompts / took["batch"]
        report.limit["requests/s, model"] = offline
        report.ratios["batch / LLM.chat offline"] = report.ours["requests/s, model"] / offline


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--model", help="name or folder, for the comparison with offline generation")
    own.add_argument("--lines", type=int, default=LINES, help="requests against the stub engine")
    given, rest = own.parse_known_args()
    options = arguments("A batch from upload to results.", rest)
    report = Report("batch")
    with tempfile.TemporaryDirectory() as folder:
        against_a_stub(report, QUICK_LINES if options.quick else given.lines, Path(folder) / "stub")
        if given.model is not None:
            home = Path(folder) / "model"
            against_a_model(report, given.model, QUICK_PROMPTS if options.quick else PROMPTS, home)
    report.show(options.json)


if __name__ == "__main__":
    main()
