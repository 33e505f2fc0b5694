"""The overlapped loop beside the plain one: tokens a second of 64 requests at once on a 4M-parameter model.

The same engine, weights, prompts, seeds and threads; only `engine.overlap` differs; the script checks that both give
the same tokens. "in one call" is `LLM.generate`; "streamed" is 64 readers of an `AsyncEngine` on an event loop, where
each step also wakes the readers. Every answer has its full length.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common import THREADS, Report, alternate, arguments, median
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.async_engine import AsyncEngine
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.llm import LLM
from rondo.models import Decoder, load
from small_model import write_small_model

BATCH, PROMPT = 64, 24
Tokens = list[list[int]]


def in_one_call(
    model: Decoder, config: EngineConfig, prompts: Tokens, params: list[SamplingParams]
) -> Tokens:
    outputs = LLM(model, config=config).generate(prompts, params)
    return [output.outputs[0].token_ids for output in outputs]


def streamed(model: Decoder, config: EngineConfig, prompts: Tokens, params: list[SamplingParams]) -> Tokens:
    engine = AsyncEngine(EngineCore(model, config))

    async def read(i: int) -> list[int]:
        tokens: list[int] = []
        async for chunk in engine.generate(GenerateRequest(str(i), prompts[i], params[i])):
            tokens += chunk.token_ids
        return tokens

    async def read_all() -> Tokens:
        return await asyncio.gather(*(read(i) for i in range(len(prompts))))

    try:
        return asyncio.run(read_all())
    finally:
        engine.stop()


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report, rng = Report("overlap"), random.Random(0)
    answer = 16 if options.quick else 96
    prompts = [[rng.randrange(3, 300) for _ in range(PROMPT)] for _ in range(BATCH)]
    params = [
        SamplingParams(max_tokens=answer, ignore_eos=True, logprobs=0, seed=i, detokenize=False)
        for i in range(BATCH)
    ]
    report.peers["plain"] = {}
    with tempfile.TemporaryDirectory() as root:
        model = load(write_small_model(Path(root) / "small")).eval()
        for name, way in {"tokens/s, in one call": in_one_call, "tokens/s, streamed": streamed}.items():
            plain, ours = measure(
                lambda c, way=way: way(model, c, prompts, params), 2 if options.quick else 7
            )
            report.peers["plain"][name], report.ours[name] = plain, ours
            report.ratios[name] = ours / plain
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


def measure(generate: Callable[[EngineConfig], Tokens], runs: int) -> tuple[float, float]:
    """Tokens a second, plain and overlapped."""
    given: dict[bool, Tokens] = {}

    def rate(overlap: bool) -> float:
        config = EngineConfig(max_num_seqs=BATCH, prefix_cache=False, threads=THREADS, overlap=overlap)
        start = time.perf_counter()
        given[overlap] = generate(config)
        return sum(map(len, given[overlap])) / (time.perf_counter() - start)

    rate(False)
    results = alternate(runs, plain=lambda: rate(False), overlapped=lambda: rate(True))
    assert given[False] == given[True]
    return median(results["plain"]), median(results["overlapped"])


if __name__ == "__main__":
    main()
