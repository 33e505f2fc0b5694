"""Whether it learns: each generated task from a success rate of at most 0.3 to at least 0.9, by several algorithms.

The model is the demo's, tuned by examples until it succeeds now and then; each algorithm goes on from the very same
weights, by the task's recipe. Success is measured on 256 held-out prompts, one answer each at temperature 1, every few
steps; where it is at the goal, twice as many others have to say so too, and theirs is the rate that counts. All cells
are printed, those that did not get there too. With --results each run is written down as it ends, and what is written
there already is not run again: a long benchmark may be cut. With --figure it draws the curves: one panel a task, one
colour an algorithm, a line a seed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# ruff: isort: off
from common import THREADS, Report, say

import torch

# ruff: isort: on
from rondo.demo.pipeline import DemoModel, prepare
from rondo.demo.recipe import QUICK, recipe_for
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import TASKS, task

BEGIN, GOAL = 0.3, 0.9
ALGORITHMS = ("grpo", "ppo", "rloo", "online_dpo")
SETTINGS: dict[str, dict[str, object]] = {"ppo": {"minibatches": 1}, "online_dpo": {"lr": 2e-4}}
"""What an algorithm is given beside its preset."""


@dataclass(frozen=True)
class Curve:
    task: str
    algorithm: str
    seed: int
    points: list[tuple[int, float]]
    """(step, success rate)."""
    seconds: float
    """Of reinforcement learning, measurements included."""

    def __str__(self) -> str:
        (_, begin), (step, end) = self.points[0], self.points[-1]
        return f"{begin:.2f} -> {end:.2f} at step {step}, {self.seconds:.0f} s"

    @property
    def learned(self) -> bool:
        return self.points[0][1] <= BEGIN and self.points[-1][1] >= GOAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="which tasks")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="which algorithms")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (3)")
    parser.add_argument("--steps", type=int, default=250, help="most steps of a run (250)")
    parser.add_argument("--every", type=int, default=5, help="steps between two measurements (5)")
    parser.add_argument(
        "--results", type=Path, help="JSON lines of the runs; those that are there are not repeated"
    )
    parser.add_argument("--figure", type=Path, help="a PNG to draw")
    parser.add_argument("--quick", action="store_true", help="sizes that teach nothing, to see that it runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    tasks, algorithms = given.tasks.split(","), given.algorithms.split(",")
    known = read(given.results) if given.results else []
    curves = [curve for curve in known if curve.task in tasks and curve.algorithm in algorithms]
    for name in tasks:
        for seed in range(given.seeds):
            done = {curve.algorithm for curve in curves if (curve.task, curve.seed) == (name, seed)}
            curves += run_all(name, seed, [each for each in algorithms if each not in done], given)
    tell(curves, given)


def run_all(name: str, seed: int, algorithms: Sequence[str], given: argparse.Namespace) -> list[Curve]:
    """From the same prepared weights; each run is written down as it ends."""
    if not algorithms:
        return []
    say(f"{name}, seed {seed}: the model")
    recipe = QUICK if given.quick else recipe_for(name)
    made, curves = prepare(name, seed, recipe), list[Curve]()
    for algorithm in algorithms:
        steps = 2 if given.quick else given.steps
        curves.append(run(made, name, algorithm, seed, steps, given.every))
        say(f"{name}, seed {seed}, {algorithm}: {curves[-1]}")
        if given.results:
            with given.results.open("a") as file:
                file.write(json.dumps(asdict(curves[-1])) + "\n")
    return curves


def read(path: Path) -> list[Curve]:
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [Curve(**{**row, "points": [(step, rate) for step, rate in row["points"]]}) for row in rows]


def run(made: DemoModel, name: str, algorithm: str, seed: int, steps: int, every: int) -> Curve:
    """From a copy of the prepared weights, until the goal is reached or the steps are used up."""
    told = made.grpo.config.model_dump(exclude_unset=True) | SETTINGS.get(algorithm, {})
    config = RlConfig.model_validate(
        {**told, "algorithm": algorithm, "steps": steps, "seed": seed, "most_idle": 0}
    )
    loop = Loop(copy.deepcopy(made.model), made.tokenizer, task(name), config)
    begin = time.perf_counter()
    points = [(0, rate(loop, [1, 2, 3]))]
    for step in range(1, steps + 1):
        loop.step()
        if step % every == 0 or step == steps:
            points.append((step, rate(loop, [1])))
        if points[-1][0] == step and (points[-1][1] >= GOAL or step == steps):
            points[-1] = step, rate(loop, [2, 3])
            if points[-1][1] >= GOAL:
                break
    loop.close()
    return Curve(name, algorithm, seed, points, time.perf_counter() - begin)


def rate(loop: Loop, seeds: Sequence[int]) -> float:
    """How many of the held-out prompts that the seeds draw are answered rightly."""
    return sum(loop.evaluate(seed)["pass@1"] for seed in seeds) / len(seeds)


def tell(curves: Sequence[Curve], given: argparse.Namespace) -> None:
    report = Report("learns")
    for name in dict.fromkeys(curve.task for curve in curves):
        for algorithm in dict.fromkeys(curve.algorithm for curve in curves):
            own = [curve for curve in curves if (curve.task, curve.algorithm) == (name, algorithm)]
            if own:
                cell = f"{name}, {algorithm}"
                report.ours[f"{cell}: learned"] = sum(curve.learned for curve in own) / len(own)
                report.ours[f"{cell}: from"] = max(curve.points[0][1] for curve in own)
                report.ours[f"{cell}: to"] = min(curve.points[-1][1] for curve in own)
                report.ours[f"{cell}: steps"] = max(curve.points[-1][0] for curve in own)
                report.ours[f"{cell}: seconds"] = max(curve.seconds for curve in own)
    lost = [f"{curve.task} by {curve.algorithm}" for curve in curves if not curve.learned]
    report.notes.append(f"the worst of the seeds; {len(curves) - len(lost)} of {len(curves)} runs learned")
    if given.figure:
        draw(curves, given.figure)
    report.show(given.json)
    if lost and not given.quick:
        sys.exit(f"{len(lost)} runs did not learn: {', '.join(lost)}")


def draw(curves: Sequence[Curve], path: Path) -> None:
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(curve.task for curve in curves))
    algorithms = list(dict.fromkeys(curve.algorithm for curve in curves))
    figure = Figure(figsize=(3.6 * len(tasks), 3.2), layout="constrained")
    for panel, name in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for number, algorithm in enumerate(algorithms):
            own = [curve for curve in curves if (curve.task, curve.algorithm) == (name, algorithm)]
            for curve in own:
                label = algorithm if curve is own[0] else None
                panel.plot(
                    *zip(*curve.points, strict=True), color=f"C{number}", alpha=0.8, lw=1.2, label=label
                )
        panel.axhline(GOAL, color="grey", lw=0.6, ls=":")
        panel.set(title=name, xlabel="step", ylim=(0, 1))
    figure.axes[0].set_ylabel("right on held-out prompts")
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
    say(f"drawn: {path}")


if __name__ == "__main__":
    main()
