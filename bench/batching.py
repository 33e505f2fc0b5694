"""Continuous batching beside the two it replaced: tokens a second of 192 requests of mixed lengths in 64 places.

The engine is the same in all three; only when requests may join differs (`engine.batching`). No peer but ourselves.
"""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from common import THREADS, Report, alternate, arguments, median
from rollout import rate
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.schedule.admission import Batching
from rondo.models import load
from small_model import write_small_model

PLACES, REQUESTS, PROMPT, LONGEST = 64, 192, 24, 96
MODES: tuple[Batching, ...] = ("continuous", "dynamic", "static")


def generator(folder: Path, batching: Batching, count: int) -> Callable[[], int]:
    config = EngineConfig(max_num_seqs=PLACES, prefix_cache=False, threads=THREADS, batching=batching)
    llm = LLM(load(folder), config=config)
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 300) for _ in range(PROMPT)] for _ in range(count)]
    lengths = [rng.randrange(4, LONGEST + 1) for _ in prompts]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]

    def generate() -> int:
        given = [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
        assert given == lengths
        return sum(given)

    return generate


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(THREADS)
    report = Report("batching")
    runs, count = (1, PLACES * 2) if options.quick else (5, REQUESTS)
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small")
        modes = {mode: generator(folder, mode, count) for mode in MODES}
        for generate in modes.values():
            generate()
        rates = alternate(runs, **{mode: (lambda g=g: rate(g)) for mode, g in modes.items()})
    for mode in MODES:
        report.ours[f"{mode}, tokens/s"] = median(rates[mode])
    for mode in MODES[1:]:
        report.ratios[f"continuous / {mode}"] = median(rates["continuous"]) / median(rates[mode])
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
