"""500 clients read a stream of about 10 tokens a second each, for a minute: is any token lost, late or somebody else's?

A server in a process of its own computes a small model, with steps that take at least a tenth of a second, so that all
streams go at that pace. Each has a prompt and an answer of its own; the same model in this process says beforehand what
it must be, token by token. Beside that: gaps between two tokens as the client sees them, and the server's memory, of
which the keys and values of the tokens so far are told apart: their place is taken as they come.
"""

import asyncio
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from common import Report, arguments, cpu_seconds, say
from rondo.client.bench.figures import percentile
from rondo.client.bench.wire import ConnectionPool, ServerAddress
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from server_cost import TINY, served
from small_model import write_small_model

PACE = 0.1
KEPT = 2 * TINY["num_hidden_layers"] * TINY["num_key_value_heads"] * TINY["head_dim"] * 4
"""Bytes of a token's keys and values."""


@dataclass
class Stream:
    prompt: list[int]
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    done: bool = False
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        now = time.perf_counter()
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self.done = True
                continue
            body = json.loads(event.removeprefix(b"data: "))
            if "error" in body:
                raise SystemExit(f"a stream failed: {body}")
            self.tokens += body["choices"][0]["token_ids"]
            self.times.append(now)


def make_streams(folder: Path, count: int, length: int) -> list[Stream]:
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 250) for _ in range(8)] for _ in range(count)]
    params = [
        SamplingParams(max_tokens=length, seed=i, ignore_eos=True, detokenize=False) for i in range(count)
    ]
    llm = LLM(folder, config=EngineConfig(max_num_seqs=count, threads=1))
    answers = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    return [Stream(*pair) for pair in zip(prompts, answers, strict=True)]


async def read_all(url: str, streams: list[Stream], pid: int) -> list[tuple[float, float]]:
    """The server's memory, MiB, once a second; and without keys and values."""
    pool = ConnectionPool(ServerAddress.of(url), {})

    async def read(number: int, stream: Stream) -> None:
        body = {"model": "model", "prompt": stream.prompt, "max_tokens": len(stream.expected), "seed": number}
        body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
        request = pool.request("POST", "/v1/completions", json.dumps(body).encode())
        status = await pool.send(request, stream.feed)
        assert status == 200, status

    async def watch() -> None:
        while True:
            held, tokens = own_mib(pid), sum(len(stream.prompt) + len(stream.tokens) for stream in streams)
            memory.append((held, held - tokens * KEPT / 2**20))
            await asyncio.sleep(1)

    memory: list[tuple[float, float]] = []
    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(read(number, stream) for number, stream in enumerate(streams)))
    watcher.cancel()
    return memory


def own_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.split("RssAnon:")[1].split()[0]) / 1024


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    count, seconds = (60, 5) if options.quick else (500, 60)
    report = Report("streams")
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small", **TINY, max_position_embeddings=1024)
        streams = make_streams(folder, count, int(seconds / PACE))
        say(f"{count} answers of {len(streams[0].expected)} tokens are known")
        with served(folder, f"--pace={PACE}", f"--max-num-seqs={count}") as (url, process):
            before = cpu_seconds(process.pid), time.process_time(), time.perf_counter()
            memory = asyncio.run(read_all(url, streams, process.pid))
            wall = time.perf_counter() - before[2]
            server, client = cpu_seconds(process.pid) - before[0], time.process_time() - before[1]
    gaps = sorted(b - a for stream in streams for a, b in zip(stream.times, stream.times[1:], strict=False))
    wrong = [stream for stream in streams if stream.tokens != stream.expected or not stream.done]
    chunks = sum(len(stream.times) for stream in streams)
    settled = memory[len(memory) // 5 :]
    report.ours = {
        "streams": count,
        "streams lost, cut or mixed up": len(wrong),
        "tokens a second of one stream": len(streams[0].expected) / wall,
        "gap between tokens, median, ms": percentile(gaps, 50) * 1e3,
        "gap between tokens, p99, ms": percentile(gaps, 99) * 1e3,
        "gap between tokens, longest, ms": gaps[-1] * 1e3,
        "server's CPU, model included, a token, ms": server / chunks * 1e3,
        "client's CPU a token, ms": client / chunks * 1e3,
        "server's memory at the end, MiB": settled[-1][0],
        "its growth in the last four fifths, MiB": settled[-1][0] - settled[0][0],
        "the same without keys and values, MiB": settled[-1][1] - settled[0][1],
    }
    report.limit = {"streams lost, cut or mixed up": 0, "gap between tokens, median, ms": PACE * 1e3}
    report.limit["how"] = "the pace of the steps"
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)
    if wrong:
        raise SystemExit(f"{len(wrong)} streams were not what they should be")


if __name__ == "__main__":
    main()
