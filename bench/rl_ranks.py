"""An RL step on two ranks beside one process with two threads, and each rank's memory beside the plan's figure.

Both sides train a new model of 22M parameters on the same samples: ranks share the prompts and the rows, with ZeRO-3 or
ZeRO-1, one thread each. Sides take turns, each in processes of its own; the time is the median over steps after the
first, of the wall clock. The plan of a rank: its shares of the optimizer's state and, in ZeRO-3, of weights and
gradients; the engine's copy of the weights; keys and values of its prompts; the microbatch; and `HEAP` times all that,
as in `rl_memory.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# ruff: isort: off
from common import Report, arguments, free_port, median, say

import torch

# ruff: isort: on
from rl_memory import HEAP, LARGE, planned, tokens_of
from rondo import models
from rondo.demo.recipe import hf_config, tokenizer_for
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import join, leave
from rondo.parallel.ranks.world import read_world
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from train_memory import resident

RANKS, STEPS, ROUNDS = 2, 5, 3
SIDES = {"one process, two threads": None, "two ranks, ZeRO-3": 3, "two ranks, ZeRO-1": 1}
BATCH = {"entropy": 1e-6, "prompts_per_step": 16, "samples_per_prompt": 8, "max_tokens": 64, "most_idle": 0}


def measure(zero: int | None) -> None:
    """Prints the seconds of a step and this rank's memory in MiB."""
    torch.set_num_threads(RANKS if zero is None else 1)
    tokenizer = tokenizer_for(0)
    hf = hf_config(LARGE, tokenizer)
    config = RlConfig.model_validate({"task": "reverse", "tokens_per_microbatch": 2048, **BATCH})
    model, mesh = models.new(hf, seed=0), None
    before = resident("VmRSS") - sum(p.nbytes for p in model.parameters()) / 2**20
    if zero is not None:
        mesh = join(LayoutConfig(zero=zero), read_world(), model.config, torch.device("cpu"))
    loop, seconds, tokens = Loop(model, tokenizer, task("reverse"), config, mesh), [], []
    loop.observers.append(lambda step: tokens.append(sum(map(tokens_of, step.groups))))
    for _ in range(STEPS):
        begin = time.perf_counter()
        loop.step()
        seconds.append(time.perf_counter() - begin)
    found = planned(loop, dict(hf), max(tokens) / (1 if mesh is None else RANKS))
    weights = sum(p.numel() for p in loop.learner.model.parameters())
    if zero is not None:
        states = {3: 16 * weights / RANKS, 1: 8 * weights / RANKS + 8 * weights}[zero]
        found["models"] = (states + 4 * weights) / 2**20
    plan = HEAP * (found["models"] + found["cache"] + found["microbatch"])
    peak = resident("VmHWM") - before
    said = {"seconds": median(seconds[1:]), "peak": peak, "plan": plan}
    if mesh is not None:
        said["peak"] = max(mesh.said(peak))
        leave()
    if mesh is None or mesh.world.first:
        print(json.dumps(said))


def run(zero: int | None) -> dict[str, float]:
    size = 1 if zero is None else RANKS
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared["OMP_NUM_THREADS"] = str(RANKS // size)
    asked = [sys.executable, str(Path(__file__)), "--one", str(-1 if zero is None else zero)]
    ranks = [
        subprocess.Popen(
            asked, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    found: dict[str, float] = json.loads(said[0].splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one", type=int)
        zero = parser.parse_args().one
        measure(None if zero < 0 else zero)
        return
    options = arguments(__doc__ or "")
    report = Report(f"an RL step on {RANKS} ranks, {STEPS} steps")
    report.columns["planned"] = {}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(1 if options.quick else ROUNDS):
        for side, zero in SIDES.items():
            say(side)
            found[side].append(run(zero))
    alone = median([each["seconds"] for each in found["one process, two threads"]])
    for side, each in found.items():
        seconds, peak = median([x["seconds"] for x in each]), median([x["peak"] for x in each])
        report.ours[f"{side}: seconds a step"] = seconds
        report.ours[f"{side}: peak of a rank, MiB"] = peak
        report.columns["planned"][f"{side}: peak of a rank, MiB"] = each[0]["plan"]
        report.ratios[f"{side}: memory over the plan"] = peak / each[0]["plan"]
        if side != "one process, two threads":
            report.ratios[f"{side}: speed over one process"] = alone / seconds
    report.show(options.json)


if __name__ == "__main__":
    main()
