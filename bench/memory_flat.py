"""Does memory grow with use? The process's resident memory over 10,000 short requests through one engine.

64 readers stream answers of mixed lengths from one `AsyncEngine` on the 4M-parameter model; one in eight leaves after
its first token, as a client that hangs up does, and one in sixteen is aborted by its name. The prefix cache is on and
small, so that blocks are published, found and evicted all the time: a third of the prompts begins with one of 16
beginnings. The script checks that at the end nothing is left in the engine and every block can be handed out. Growth
is counted from the first tenth on: until then tables and buffers come to their size.
"""

import asyncio
import os
import random
import tempfile
from pathlib import Path

import torch

from common import THREADS, Report, arguments, say
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.models import load
from small_model import write_small_model

READERS, BLOCKS, SIZE = 64, 320, 16
LONGEST_PROMPT, LONGEST_ANSWER = 64, 12


def resident() -> float:
    """MiB."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Load:
    def __init__(self, engine: AsyncEngine, requests: int) -> None:
        self.engine = engine
        self.requests = requests
        self.rng = random.Random(0)
        self.beginnings = [self._tokens(32) for _ in range(16)]
        self.begun = self.ended = self.left = self.aborted = 0
        self.resident: dict[int, float] = {}

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(3, 300) for _ in range(count)]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as readers:
            for _ in range(READERS):
                readers.create_task(self._read())

    async def _read(self) -> None:
        while self.begun < self.requests:
            self.begun += 1
            await self._one(self.begun)
            self.ended += 1
            if self.ended % (self.requests // 10) == 0:
                self.resident[self.ended] = resident()
                say(f"{self.ended:,} requests: {self.resident[self.ended]:.1f} MiB")

    async def _one(self, number: int) -> None:
        beginning = self.rng.choice(self.beginnings) if number % 3 == 0 else []
        prompt = beginning + self._tokens(self.rng.randrange(1, LONGEST_PROMPT - len(beginning)))
        params = SamplingParams(max_tokens=self.rng.randrange(2, LONGEST_ANSWER + 1), ignore_eos=True)
        answer = self.engine.generate(GenerateRequest(str(number), prompt, params))
        async for _ in answer:
            if number % 8 == 1:
                self.left += 1
                await answer.aclose()
                return
            if number % 16 == 2:
                self.aborted += 1
                await self.engine.abort(str(number))


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report, requests = Report("memory_flat"), 2000 if options.quick else 10_000
    config = EngineConfig(
        max_num_seqs=READERS, num_blocks=BLOCKS, block_size=SIZE, prefix_cache=True, threads=THREADS
    )
    with tempfile.TemporaryDirectory() as root:
        core = EngineCore(load(write_small_model(Path(root) / "small")).eval(), config)
        engine = AsyncEngine(core)
        work = Load(engine, requests)
        try:
            asyncio.run(work.run())
        finally:
            engine.stop()
    core.pool.check()
    assert not core.has_work
    assert core.pool.used == 0, f"{core.pool.used} blocks are still held"
    measured = list(work.resident.values())
    report.ours |= {f"resident after {ended:,} requests, MiB": mib for ended, mib in work.resident.items()}
    report.ours["growth after the first tenth, MiB"] = measured[-1] - measured[0]
    report.ours["growth, bytes a request"] = (measured[-1] - measured[0]) * 2**20 / (0.9 * requests)
    report.limit = {"growth after the first tenth, MiB": 0.0, "how": "none at all"}
    report.notes.append(
        f"{work.left:,} readers left early, {work.aborted:,} requests were aborted; "
        f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}"
    )
    report.show(options.json)


if __name__ == "__main__":
    main()
