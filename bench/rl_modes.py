"""RL's modes where grading is slow: the demo's model and task, with a grader that takes as long as a judge.

Every answer's score comes after a wait, drawn from the answer itself, so that all modes wait alike: most as long as is
told, one in 16 four times that. All modes begin with the same weights and take as many steps by the same settings, one
mode after another, and over again for each seed. What is compared is the time of a step; the success rate on held-out
prompts before and after shows whether steps are worth as much where answers are older than the weights they train.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import time
import zlib
from dataclasses import dataclass

# ruff: isort: off
from common import THREADS, Report, median, say

import torch

# ruff: isort: on
from rondo.demo.pipeline import DemoModel, prepare
from rondo.demo.recipe import QUICK, DemoRecipe
from rondo.graders import Sample, Score
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rondo.rl.tasks.types import Problem, Split

TASK = "reverse"
MODES: dict[str, dict[str, object]] = {
    "sync": {},
    "one_step_off": {"correction": "truncate"},
    "async": {"correction": "truncate", "max_staleness": 2},
}


@dataclass(frozen=True)
class Slow:
    """A task whose grader takes its time."""

    seconds: float
    name: str = TASK
    max_tokens: int = task(TASK).max_tokens

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        return task(TASK).prompts(seed, n, split)

    async def score(self, sample: Sample) -> Score:
        """One in 16 takes four times as long."""
        drawn = zlib.crc32(f"{sample.metadata} {sample.completion}".encode())
        await asyncio.sleep(self.seconds * (4 if drawn % 16 == 0 else 1))
        return await task(TASK).score(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="what most scores take (0.1)")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run (60)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (3)")
    parser.add_argument("--quick", action="store_true", help="sizes that teach nothing, to see that it runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    report, steps, seeds = (
        Report("rl_modes"),
        2 if given.quick else given.steps,
        1 if given.quick else given.seeds,
    )
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for seed in range(seeds):
        say(f"seed {seed}: the model")
        made = prepare(TASK, seed, QUICK if given.quick else DemoRecipe())
        for mode in MODES:
            row = run(made, mode, seed, steps, given.seconds)
            found[mode].append(row)
            say(f"seed {seed}, {mode}: {row}")
    for mode, rows in found.items():
        for figure in rows[0]:
            report.ours[f"{mode}: {figure}"] = median([row[figure] for row in rows])
        if mode != "sync":
            gains = [
                other["a step, s"] / row["a step, s"] for other, row in zip(found["sync"], rows, strict=True)
            ]
            report.ratios[f"steps a second, {mode} / sync"] = median(gains)
    report.notes.append(
        f"{THREADS} threads, medians of {seeds} seeds, {steps} steps each; a score takes {given.seconds} s, "
        "one in 16 four times that"
    )
    report.show(given.json)


def run(made: DemoModel, mode: str, seed: int, steps: int, seconds: float) -> dict[str, float]:
    told = made.grpo.config.model_dump(exclude_unset=True) | MODES[mode]
    config = RlConfig.model_validate({**told, "mode": mode, "steps": steps, "seed": seed, "most_idle": 0})
    loop = Loop(copy.deepcopy(made.model), made.tokenizer, Slow(seconds), config)
    try:
        before = loop.evaluate(seed=1)["pass@1"]
        begin = time.perf_counter()
        rows = [loop.step() for _ in range(steps)]
        taken = (time.perf_counter() - begin) / steps
        after = loop.evaluate(seed=1)["pass@1"]
    finally:
        loop.close()
    middle = {
        name: median([row[f"seconds/{name}"] for row in rows])
        for name in ("rollout", "score", "train")
        if all(f"seconds/{name}" in row for row in rows)
    }
    return {
        "a step, s": taken,
        **{f"of it {name}, s": value for name, value in middle.items()},
        "steps behind, mean": sum(row.get("stale", 0.0) for row in rows) / steps,
        "right before": before,
        "right after": after,
    }


if __name__ == "__main__":
    main()
