"""What HTTP costs over calling the engine: a request, and one streamed token.

The same small model answers the same prompts, token ids in both cases, once through a server in a process of its own
and once through an `AsyncEngine` in this one, in alternation. A request asks for one token; a stream for 200, and its
cost is shared among them. The tokens of both sides are compared. In turn with them a request goes to a server of the
same kind that has no model and answers at once: what HTTP itself costs, with the client's part (`rondo.client.bench`)
and the way between two processes. The server logs a line a request, as it does by default.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from common import Report, arguments, median, say
from rondo.client.bench.wire import ConnectionPool, ServerAddress
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.models import load
from rondo.text.tokenizer import Tokenizer
from small_model import TINY, write_small_model

TOKENS = 200


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, str(Path(__file__).parent / "_server.py"), str(folder), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise SystemExit(f"the server ended with exit code {process.wait()}")
        yield url, process
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


class Sides:
    def __init__(self, url: str, bare: str, engine: AsyncEngine) -> None:
        self.pool = ConnectionPool(ServerAddress.of(url), {})
        self.nothing = ConnectionPool(ServerAddress.of(bare), {})
        self.engine = engine
        self.number = 0

    async def direct(self, prompt: list[int], count: int) -> tuple[float, list[int]]:
        self.number += 1
        tokens: list[int] = []
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        start = time.perf_counter()
        async for chunk in self.engine.generate(GenerateRequest(str(self.number), prompt, params)):
            tokens += chunk.token_ids
        return time.perf_counter() - start, tokens

    async def http(
        self, pool: ConnectionPool, prompt: list[int], count: int, stream: bool
    ) -> tuple[float, list[int]]:
        body = {"model": "model", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        body |= {"stream": stream, "return_token_ids": True}
        pieces: list[bytes] = []
        start = time.perf_counter()
        request = pool.request("POST", "/v1/completions", json.dumps(body).encode())
        status = await pool.send(request, pieces.append)
        seconds = time.perf_counter() - start
        whole = b"".join(pieces)
        if status != 200:
            raise SystemExit(f"status {status}: {whole.decode()}")
        events = (
            [line[6:] for line in whole.split(b"\n") if line.startswith(b"data: {")] if stream else [whole]
        )
        tokens = [token for event in events for token in json.loads(event)["choices"][0]["token_ids"]]
        return seconds, tokens


async def compare(sides: Sides, rounds: int, count: int, stream: bool) -> tuple[float, float, float]:
    """Median seconds: direct, over HTTP, and of a server that does nothing, which does not stream."""
    rng = random.Random(count)
    direct, http, nothing = [], [], []
    for number in range(rounds + 3):
        prompt = [rng.randrange(10, 250) for _ in range(8)]
        one, tokens = await sides.direct(prompt, count)
        other, same = await sides.http(sides.pool, prompt, count, stream)
        floor = 0.0 if stream else (await sides.http(sides.nothing, prompt, count, False))[0]
        assert tokens == same, "the two sides gave other tokens"
        if number >= 3:
            direct.append(one)
            http.append(other)
            nothing.append(floor)
    return median(direct), median(http), median(nothing)


async def measure(sides: Sides, quick: bool) -> dict[str, float]:
    engine, server, nothing = await compare(sides, 50 if quick else 500, 1, stream=False)
    stream, streamed, _ = await compare(sides, 10 if quick else 60, TOKENS, stream=True)
    return {
        "engine, one token, ms": engine * 1e3,
        "server, one token, ms": server * 1e3,
        "engine, one more token of a stream, ms": stream / TOKENS * 1e3,
        "server, one more token of a stream, ms": streamed / TOKENS * 1e3,
        "server that does nothing, ms": nothing * 1e3,
        "cost of a request, ms": (server - engine) * 1e3,
        "of which beside HTTP itself, ms": (server - engine - nothing) * 1e3,
        "cost of a streamed token, ms": (streamed - stream) / TOKENS * 1e3,
    }


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    report = Report("server_cost")
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small", **TINY)
        tokenizer = Tokenizer.load(folder)
        core = EngineCore(load(folder).eval(), EngineConfig(threads=1), tokenizer.eos_ids)
        engine = AsyncEngine(core, tokenizer)
        try:
            with served(folder) as (url, _), served(folder, "--bare") as (bare, _):
                say(f"serving at {url}")
                report.ours = asyncio.run(measure(Sides(url, bare, engine), options.quick))
        finally:
            engine.stop()
    report.limit = {
        "cost of a request, ms": report.ours["server that does nothing, ms"],
        "cost of a streamed token, ms": 0.0,
        "how": "a server of the same kind that does nothing",
    }
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
