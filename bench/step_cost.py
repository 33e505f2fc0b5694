"""What a step costs beside the model: scheduler, cache and layout; the sampler; text for the readers. No peer.

The engine's own core runs steps of decoding requests with everything but the model's forward pass, which is left out.
Two curves show that a step's cost grows neither with the requests that wait nor with the blocks there are.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from common import Report, arguments, median
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.output import SampleReader
from rondo.engine.runner.sampler import Sampled, Sampler
from rondo.engine.schedule.request import Request
from rondo.models import load
from rondo.text.tokenizer import Tokenizer
from small_model import write_small_model

PROMPT, LIMITS = 100, {64: 0.3, 256: 1.0}


def without_model(core: EngineCore) -> EngineCore:
    """Everything of a step but the model and the sampler: each request gets the same token."""

    def forward(step: Any) -> Any:
        core.runner._move_blocks(step.plan)
        return step.tokens

    core.runner.forward = forward  # type: ignore[method-assign]

    def sample(logits: Any, batch: Any) -> Any:
        return SimpleNamespace(read=lambda: Sampled([7] * len(batch.requests), None, {}))

    core.runner.sampler.batch = lambda requests, ahead=None: SimpleNamespace(requests=requests)  # type: ignore[method-assign]
    core.runner.sampler.sample = sample  # type: ignore[method-assign]
    return core


def core_with(folder: Path, running: int, waiting: int = 0, blocks: int | None = None) -> EngineCore:
    config = EngineConfig(
        max_num_seqs=running,
        max_step_tokens=1 << 20,
        max_queued=1 << 20,
        num_blocks=blocks,
        kv_cache_bytes=1 << 30,
    )
    core = without_model(EngineCore(load(folder), config))
    rng = random.Random(0)
    params = SamplingParams(max_tokens=None, ignore_eos=True, detokenize=False)
    for i in range(running + waiting):
        prompt = [rng.randrange(3, 300) for _ in range(PROMPT)]
        core.add(GenerateRequest(str(i), prompt, params))
    core.step()
    assert len(core.scheduler.running) == running
    return core


def milliseconds(action: Callable[[], object], runs: int) -> float:
    """The median of single runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def sampling(running: int, vocab: int, runs: int) -> float:
    sampler = Sampler(running)
    requests = []
    for row in range(running):
        request = Request(
            str(row), 0, [1] * 9, SamplingParams(logprobs=0, detokenize=False), 99, row, seed=row
        )
        request.row = row
        sampler.admit(request)
        requests.append(request)
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(running, vocab)).astype(np.float32))
    return milliseconds(lambda: sampler.sample(logits, sampler.batch(requests)).read(), runs)


def streaming(folder: Path, runs: int) -> float:
    """Microseconds a token, one token at a time."""
    tokenizer = Tokenizer.load(folder)
    rng = random.Random(0)
    request = Request("a", 0, [5] * 9, SamplingParams(stop=("never said",)), 10**6, 0)
    reader = SampleReader(request, tokenizer)
    tokens = [rng.randrange(3, 300) for _ in range(runs)]
    start = time.perf_counter()
    for token in tokens:
        request.tokens.append(token)
        request.weight_versions.append(0)
        reader.read()
    return (time.perf_counter() - start) / runs * 1e6


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    report = Report("step_cost", limit={"how": "what is asked of a step"})
    runs = 30 if options.quick else 300
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small")
        for running, limit in LIMITS.items():
            core = core_with(folder, running)
            figure = f"scheduler, cache, layout at {running} running, ms"
            report.ours[figure] = milliseconds(core.step, runs)
            report.limit[figure] = limit
        for running in LIMITS:
            report.ours[f"sampler at {running} rows of 512, ms"] = sampling(running, 512, runs)
        for running in LIMITS:
            report.ours[f"sampler at {running} rows of 32,768, ms"] = sampling(
                running, 32_768, max(runs // 10, 5)
            )
        figure = "text and stop strings, microseconds a token"
        report.ours[figure], report.limit[figure] = streaming(folder, 100 * runs), 20.0
        for waiting in (0, 100, 1_000, 10_000):
            core = core_with(folder, 64, waiting)
            report.ours[f"64 running, {waiting:,} waiting, ms"] = milliseconds(core.step, runs)
        for blocks in (2_000, 10_000, 100_000):
            core = core_with(folder, 64, 0, blocks)
            report.ours[f"64 running, {blocks:,} blocks, ms"] = milliseconds(core.step, runs)
    report.notes.append(f"1 thread, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
