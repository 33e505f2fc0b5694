"""One RL step of the demo beside TRL's GRPOTrainer: same model, prompts, group size, lengths, grader and threads.

The model is the demo's after SFT, saved in Hugging Face layout; both sides load that folder in fp32 and take whole
steps: sample a group for each prompt at temperature 1, grade, normalise within groups, one clipped policy-gradient
step with fused AdamW. The learning rate is next to nothing, so that answers keep their lengths on both sides from the
first step to the last; the script compares the tokens and rewards of both and stops if they differ. TRL runs in its
own environment (tests/real/setup.sh) without bf16 emulation and gradient checkpointing, which it would turn on by
itself, and with the whole step as one microbatch (4 and 8 microbatches were within a tenth of it). Idle threads sleep
soon on both sides (`rondo.base.threads`): otherwise two processes on the same cores slow each other down by spinning.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

# ruff: isort: off
# Before torch, which reads what it sets when it is loaded.
from common import THREADS, Report, alternate, arguments, median, say, seconds

import torch

# ruff: isort: on
import peers
from rondo import models
from rondo.demo.pipeline import prepare
from rondo.demo.recipe import QUICK, DemoRecipe
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rondo.text.tokenizer import Tokenizer

TASK = "reverse"
LR = 1e-9
SOURCE = Path(__file__).resolve().parents[1] / "src"


class Trl(peers.Peer):
    """Waiting between steps."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__("trl", "_trl_grpo.py", settings)
        self.tokens: list[float] = []
        self.rewards: list[float] = []

    def step(self) -> float:
        answer = self.ask(step=True)
        self.tokens.append(answer["tokens"])
        self.rewards.append(answer["reward"])
        return float(answer["seconds"])


def main() -> None:
    options = arguments(__doc__ or "", trl="TRL's GRPOTrainer")
    torch.set_num_threads(THREADS)
    runs, warm = (2, 1) if options.quick else (15, 3)
    report = Report("rl_step")
    with tempfile.TemporaryDirectory() as root:
        recipe = QUICK if options.quick else replace(DemoRecipe(), sft_until=0.2)
        say("making the model: the demo up to RL")
        made = prepare(TASK, 0, recipe)
        folder = Path(root) / "model"
        models.save(made.model, folder)
        made.tokenizer.save(folder)
        config = made.grpo.config.model_copy(update={"lr": LR, "warmup": 0, "decay": "constant"})
        grpo = Loop(models.load(folder), Tokenizer.load(folder), task(TASK), config)
        rows: list[dict[str, float]] = []

        def ours() -> float:
            return seconds(lambda: rows.append(grpo.step()))

        sides = {"rondo": ours}
        samples = config.prompts_per_step * config.samples_per_prompt
        with ExitStack() as stack:
            peer = None
            if options.peers:
                try:
                    peer = stack.enter_context(Trl(settings_for(config, folder, Path(root), runs + warm)))
                    sides["trl"] = peer.step
                except peers.Absent as absent:
                    report.peers["trl"] = {"absent": "absent"}
                    report.notes.append(str(absent))
            finish(report, runs, warm, sides, rows)
            if peer is not None:
                compare(report, rows, peer, samples, options.quick)
    report.notes.append(
        f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}; {config.prompts_per_step} prompts x "
        f"{config.samples_per_prompt} samples, at most {grpo.max_tokens} tokens each"
    )
    report.show(options.json)


def settings_for(config: Any, folder: Path, output: Path, steps: int) -> dict[str, Any]:
    """The very prompts our side draws, step by step."""
    goal = task(TASK)
    drawn = [
        p
        for at in range(steps + 1)
        for p in goal.prompts(config.seed * 1_000_003 + at, config.prompts_per_step)
    ]
    return {
        "source": str(SOURCE),
        "model": str(folder),
        "output": str(output / "trl"),
        "task": TASK,
        "shares": dict(goal.shares),
        "prompts": [{"messages": p.messages, "facts": p.facts} for p in drawn],
        "prompts_per_step": config.prompts_per_step,
        "samples_per_prompt": config.samples_per_prompt,
        "max_tokens": goal.max_tokens,
        "lr": LR,
        "threads": THREADS,
        "microbatches": int(os.environ.get("RONDO_BENCH_TRL_MICROBATCHES", "1")),
    }


def finish(report: Report, runs: int, warm: int, sides: dict[str, Any], rows: list[dict[str, float]]) -> None:
    alternate(warm, **sides)
    rows.clear()
    timings = alternate(runs, **sides)
    say(str(timings))
    report.ours["step, s"] = median(timings["rondo"])
    for phase in ("rollout", "score", "train", "push"):
        report.ours[f"{phase}, s"] = median([row[f"seconds/{phase}"] for row in rows])
    shares = [row["seconds/rollout"] / row["seconds"] for row in rows]
    report.ours["rollout's share of the step, %"] = 100 * median(shares)
    report.ours["graders at work beside it, s"] = median([row["hidden/score"] for row in rows])
    report.ours["train, share of products in registers, %"] = 100 * median(
        [row["mfu_causal"] for row in rows]
    )
    report.ours["memory at most, MiB"] = max(row["memory/resident_peak"] for row in rows) / 2**20
    if "trl" in timings:
        report.peers["trl"] = {"step, s": median(timings["trl"])}
        report.ratios["step, TRL / rondo"] = median(timings["trl"]) / report.ours["step, s"]


def compare(report: Report, rows: list[dict[str, float]], peer: Trl, samples: int, quick: bool) -> None:
    """Both sides must sample as long answers and earn as much: else they did not do the same work."""
    own = sum(row["answer_tokens"] for row in rows) / len(rows)
    theirs = sum(peer.tokens) / len(peer.tokens) / samples
    reward, their_reward = sum(r["reward"] for r in rows) / len(rows), sum(peer.rewards) / len(peer.rewards)
    report.notes.append(
        f"tokens an answer: {own:.2f}, TRL {theirs:.2f}; reward {reward:.3f}, TRL {their_reward:.3f}"
    )
    if not quick and (abs(own / theirs - 1) > 0.05 or abs(reward - their_reward) > 0.05):
        sys.exit(f"the two sides did not do the same work: {report.notes[-1]}")


if __name__ == "__main__":
    main()
