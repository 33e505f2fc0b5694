"""An RL step's memory beside the plan's figure for it: what the process has at its peak beyond what it had before.

The plan: four bytes each of a trained weight, its gradient and both moments; four of a weight that only computes; keys
and values of a step's tokens (the whole cache is larger, but is no memory before it is written to); what the planner
says that a microbatch of the most tokens keeps (`rondo.plan.cost.memory`, which counts values of two bytes: here they
have four), with what the norms of queries and keys keep; and `HEAP` times all that, since on a CPU freed memory stays
with the process. Models are new, nearly all answers are as long as they may be, and every group teaches. Each case has
a process of its own.
"""

import argparse
import json
import subprocess
import sys

# ruff: isort: off
from common import THREADS, Report, arguments, say

import torch

# ruff: isort: on
from rondo import models
from rondo.demo.recipe import DemoRecipe, hf_config, tokenizer_for
from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.cost.memory import memory
from rondo.plan.sizes.hf import shape_of
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.rollout.types import SampleGroup
from rondo.rl.tasks.registry import task
from train_memory import resident

SMALL, LARGE = DemoRecipe(), DemoRecipe(hidden=512, layers=8)
EVERY_GROUP = {"entropy": 1e-6}
BATCH = {**EVERY_GROUP, "prompts_per_step": 16, "samples_per_prompt": 8, "max_tokens": 64}
CASES: dict[str, tuple[DemoRecipe, dict[str, object]]] = {
    "the demo's": (SMALL, {**EVERY_GROUP, "prompts_per_step": 64, "samples_per_prompt": 8}),
    "22M": (LARGE, BATCH),
    "22M, microbatches of 2,048": (LARGE, {**BATCH, "tokens_per_microbatch": 2048}),
    "22M, with a reference": (LARGE, {**BATCH, "kl": 0.01}),
    "22M, PPO with a critic of its own": (LARGE, {**BATCH, "algorithm": "ppo"}),
}
STEPS = 4
HEAP = 1.4
"""The learner keeps what it freed, which saves up to a third of a small model's step (`rondo.train.learner.memory`),
with holes: returned at once, two models' peak is 3.1 GB where it is 4.3, and the step takes 15 to 30% longer."""


def measure(name: str) -> None:
    torch.set_num_threads(THREADS)
    recipe, told = CASES[name]
    warm, _ = loop_of(DemoRecipe(hidden=64), {**told, "prompts_per_step": 2, "max_tokens": 8})
    warm.step()  # what is imported and compiled is no step's memory
    before = resident("VmRSS")
    loop, hf = loop_of(recipe, told)
    tokens: list[int] = []
    loop.observers.append(lambda step: tokens.append(sum(map(tokens_of, step.groups))))
    for _ in range(STEPS):
        loop.step()
    peak = resident("VmHWM") - before
    print(json.dumps({"peak": peak, **planned(loop, hf, max(tokens))}))


def loop_of(recipe: DemoRecipe, told: dict[str, object]) -> tuple[Loop, dict[str, object]]:
    tokenizer = tokenizer_for(0)
    hf = hf_config(recipe, tokenizer)
    config = RlConfig.model_validate({"task": "reverse", "most_idle": 0, **told})
    return Loop(models.new(hf, seed=0), tokenizer, task("reverse"), config), hf


def tokens_of(group: SampleGroup) -> int:
    """A group's samples have its prompt in common."""
    return len(group.prompt_ids) + sum(len(sample.token_ids) for sample in group.samples)


def planned(loop: Loop, hf: dict[str, object], tokens: float) -> dict[str, float]:
    """MiB."""
    company, shape = loop.learning.company, shape_of(hf, "policy")
    trained = 1 + (company.critic is not None and company.critic.learner is not None)
    weights = sum(p.numel() for p in loop.learner.model.parameters())
    kept = 16 * trained * weights + 4 * (company.reference is not None) * weights
    most = int(min(tokens, loop.config.tokens_per_microbatch))
    found = memory(shape, Layout(), Policy(loss="plain", swiglu="kernel"), StepBatch(1, most))
    norms = 4 * shape.layers * (shape.query_width + shape.kv_width) * most
    working = 2 * (found.activations + found.working + found.logits) + norms
    cache = 4 * 2 * shape.layers * shape.kv_width * tokens
    parts = {"models": kept, "cache": cache, "microbatch": working}
    parts["heap"] = (HEAP - 1) * sum(parts.values())
    return {part: value / 2**20 for part, value in parts.items()}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one")
        measure(parser.parse_args().one)
        return
    options = arguments(__doc__ or "")
    report = Report(f"an RL step's memory, {STEPS} steps")
    report.columns["planned"] = {}
    for name in list(CASES)[:1] if options.quick else CASES:
        say(name)
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        figure, parts = f"{name}: peak, MiB", ("models", "cache", "microbatch", "heap")
        report.ours[figure] = found["peak"]
        report.columns["planned"][figure] = sum(found[part] for part in parts)
        report.ratios[figure] = found["peak"] / report.columns["planned"][figure]
        report.notes.append(
            f"{name}: planned are " + ", ".join(f"{part} {found[part]:.0f}" for part in parts)
        )
    report.show(options.json)


if __name__ == "__main__":
    main()
