"""Bytes of a delta between two steps of real GRPO training, next to the whole version: bf16 weights of 22M parameters.

The learner keeps fp32 weights and publishes them rounded to bf16, for learning rates from 1e-6 to 1e-5. The first steps
are left out: Adam's are larger until its averages have settled. Encoding and applying are CPU seconds of one thread.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

# ruff: isort: off
from common import Report, arguments, say
import numpy as np
import torch

# ruff: isort: on
from rl_memory import LARGE
from rondo import models
from rondo.demo.recipe import hf_config, tokenizer_for
from rondo.models.files.headers import SINGLE
from rondo.models.files.mapping import to_hf
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rondo.weights.config import WeightsConfig
from rondo.weights.manifest import Manifest
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.deltas import apply, delta_between, single_run

RATES = (1e-6, 3e-6, 1e-5)
STEPS, SETTLING = 8, 4
BATCH: dict[str, Any] = {"prompts_per_step": 8, "samples_per_prompt": 8, "max_tokens": 32, "most_idle": 0}


def measure(rate: float, steps: int, settling: int, place: Path) -> dict[str, float]:
    tokenizer = tokenizer_for(0)
    hf = hf_config(LARGE, tokenizer)
    config = RlConfig.model_validate({"task": "reverse", "lr": rate, "entropy": 1e-6, **BATCH})
    loop = Loop(models.new(hf, seed=0), tokenizer, task("reverse"), config)
    publisher = Publisher("policy", dict(hf), WeightsConfig(folder=str(place)))
    publisher.register(
        lambda: (Shard(name, tensor.to(torch.bfloat16)) for name, tensor in to_hf(loop.learner.model))
    )
    found: list[dict[str, float]] = []
    try:
        for step in range(steps):
            loop.step()
            publisher.push(step + 1)
            now = place / "now"
            shutil.copytree(Path(publisher.source.removeprefix("shm:")), now)
            if step >= settling:
                found.append(compared(place / "before", now))
            shutil.rmtree(place / "before", ignore_errors=True)
            now.rename(place / "before")
    finally:
        publisher.close()
    return {name: median(each[name] for each in found) for name in found[0]}


def compared(before: Path, now: Path) -> dict[str, float]:
    begin = time.thread_time()
    delta = delta_between(before, now)
    encoding = time.thread_time() - begin
    assert delta is not None
    data, wanted = (np.fromfile(folder / SINGLE, np.uint8) for folder in (before, now))
    buckets = Manifest.read(now).buckets
    sent, begin = 0, time.thread_time()
    for bucket, changes in zip(buckets, delta.buckets, strict=True):
        run = single_run(bucket)
        sent += bucket.nbytes if changes is None else len(changes)
        if changes is not None and run is not None:
            apply(changes, data[run.offset : run.offset + run.length])
    applying = time.thread_time() - begin
    changed = np.fromfile(before / SINGLE, np.uint16) != wanted.view(np.uint16)
    if None not in delta.buckets:  # whole buckets are not part of a delta
        assert np.array_equal(data, wanted)
    return {
        "elements that changed": float(changed.mean()),
        "bytes of a delta, of the whole": sent / sum(bucket.nbytes for bucket in buckets),
        "encoding, GB/s": len(data) / 1e9 / encoding,
        "applying, GB/s": len(data) / 1e9 / applying,
    }


def main() -> None:
    options = arguments(__doc__ or "")
    steps, settling = (3, 1) if options.quick else (STEPS, SETTLING)
    report = Report("a delta between two RL steps")
    for rate in RATES[:1] if options.quick else RATES:
        say(f"lr {rate:g}")
        with tempfile.TemporaryDirectory() as folder:
            found = measure(rate, steps, settling, Path(folder))
        for name, value in found.items():
            report.ours[f"lr {rate:g}: {name}"] = value
    report.show(options.json)


if __name__ == "__main__":
    main()
