"""Rollout speed: tokens generated a second by 64 requests at once on a 4M-parameter model, beside transformers.

Both sides sample at temperature 1 without filters from the same fp32 weights, the same random prompts and with the same
number of threads, and give exactly the same number of tokens: ends of text are ignored. Ours also returns the
log-probability of every token, as reinforcement learning needs; transformers is not asked for them. With mixed lengths
a static batch has to run until its longest answer is done; only the tokens that were asked for are counted.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.llm import LLM
from rondo.models import load
from small_model import write_small_model

BATCH, PROMPT, ANSWER = 64, 24, 48


def rate(generate: Callable[[], int]) -> float:
    start = time.perf_counter()
    tokens = generate()
    return tokens / (time.perf_counter() - start)


def ours(folder: Path, prompts: list[list[int]], lengths: list[int]) -> Callable[[], int]:
    config = EngineConfig(max_num_seqs=BATCH, prefix_cache=False, threads=THREADS)
    llm = LLM(load(folder), config=config)
    params = [SamplingParams(max_tokens=n, ignore_eos=True, logprobs=0, detokenize=False) for n in lengths]

    def generate() -> int:
        outputs = llm.generate(prompts, params)
        given = [len(output.outputs[0].token_ids) for output in outputs]
        assert given == lengths
        return sum(given)

    return generate


def transformers_peer(folder: Path, prompts: list[list[int]], lengths: list[int]) -> Callable[[], int]:
    import transformers

    transformers.logging.set_verbosity_error()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor(prompts)
    longest = max(lengths)

    def generate() -> int:
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=0,
            )
        assert out.shape == (BATCH, PROMPT + longest)
        return sum(lengths)

    return generate


def main() -> None:
    options = arguments(__doc__.splitlines()[0], transformers="transformers")
    torch.set_num_threads(THREADS)
    report = Report("rollout")
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 300) for _ in range(PROMPT)] for _ in range(BATCH)]
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small")
        for name, lengths in {
            "tokens/s, equal lengths": [ANSWER] * BATCH,
            "tokens/s, mixed lengths": [rng.randrange(4, ANSWER + 1) for _ in range(BATCH)],
        }.items():
            measure(report, name, folder, prompts, lengths, options)
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


def measure(
    report: Report, name: str, folder: Path, prompts: list[list[int]], lengths: list[int], options: Any
) -> None:
    sides = {"ours": ours(folder, prompts, lengths)}
    if "transformers" in options.peers:
        try:
            sides["transformers"] = transformers_peer(folder, prompts, lengths)
        except ImportError:
            report.peers["transformers"] = {"absent": "absent"}
    for generate in sides.values():
        generate()
    runs = alternate(2 if options.quick else 7, **{side: (lambda g=g: rate(g)) for side, g in sides.items()})
    report.ours[name] = median(runs["ours"])
    if "transformers" in runs:
        report.peers.setdefault("transformers", {})[name] = median(runs["transformers"])
        report.ratios[name] = report.ours[name] / median(runs["transformers"])


if __name__ == "__main__":
    main()
