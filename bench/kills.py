"""An RL job that is killed at random moments until it has ended, beside the same job that nothing happens to.

    python bench/kills.py                 20 kills; --kills says how many
    python bench/kills.py --quick         3 kills of a smaller job

The job is `rondo rl` as a user starts it: a model of 1.7 M parameters, groups, a reference, a slow grader in processes
of its own, evaluations, rollouts that are stored, a checkpoint every second step. Its process gets a SIGKILL at a
moment drawn at random, one time in six while it still starts, and the same command is given again. In the end the
weights, the optimizer, every stored rollout and every measured number but times must be the same to the bit; if they
are not, or a process of a grader outlives its job, the script says so and fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# ruff: isort: off
from common import Report, arguments, median, say

import psutil

# ruff: isort: on
from rondo import models
from rondo.base.storage.hashing import sha256_file
from rondo.base.storage.home import cache_dir
from rondo.demo.recipe import QUICK, DemoRecipe, hf_config, tokenizer_for

SEED = 0
SLOW = """
import time
from rondo.rl.tasks.custom import Custom

def make(random):
    return f"say {random.randint(0, 9999)}", {}

def grade(facts, answer):
    time.sleep(0.002)
    return sum(map(ord, answer)) % 7

TASK = Custom(make, __file__ + ":grade", max_tokens=12)
"""
STARTING = 1 / 6
"""The share of kills that come before the first step of a process."""
SPAN = 3
"""Steps that a process may have begun when its kill comes."""
GONE_SECONDS = 30.0
TIMES = ("seconds", "hidden/", "tokens_per_second", "mfu", "peak_flops", "memory/")
"""Measurements that no two runs have in common."""


@dataclass
class Found:
    phases: Counter[str] = field(default_factory=Counter)
    saving: int = 0
    again: list[int] = field(default_factory=list)
    """Steps that a process did which an earlier one had done."""
    starts: list[float] = field(default_factory=list)
    """Seconds from the command to its first phase."""
    left: int = 0


class Ground:
    """One home, and the command that runs in it."""

    def __init__(self, root: Path, name: str, flags: list[str]) -> None:
        self.home, self.told = root / name, root / f"{name}.phase"
        (self.home / "cache").mkdir(parents=True)
        (self.home / "cache" / "native").symlink_to(cache_dir() / "native")
        self._command = [
            sys.executable,
            str(Path(__file__).with_name("_phases.py")),
            str(self.told),
            "rl",
            *flags,
        ]

    def start(self) -> subprocess.Popen[bytes]:
        self.told.unlink(missing_ok=True)
        environment = {**os.environ, "RONDO_HOME": str(self.home)}
        return subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL)

    def now(self) -> tuple[str, int, str]:
        """Phase, step, and what is done beside."""
        try:
            words = [part.decode().strip() for part in _parts(self.told.read_bytes())]
        except FileNotFoundError:
            words = []
        phase, step, beside = words if len(words) == 3 else ("start", "", "")
        return phase or "start", int(step or 0), beside

    @property
    def job(self) -> Path:
        (job,) = (self.home / "jobs").iterdir()
        return job

    def done(self) -> bool:
        try:
            return json.loads((self.job / "status.json").read_text())["state"] == "succeeded"
        except (FileNotFoundError, ValueError):
            return False

    def left(self) -> dict[str, str]:
        """What must be the same, by name."""
        last = max(
            (self.job / "checkpoints").iterdir(), key=lambda folder: int(folder.name.rpartition("_")[2])
        )
        kinds = [(last, "*.distcp"), (self.job / "export", "*.safetensors"), (self.job / "rollouts", "*.zip")]
        files = [file for folder, kind in kinds for file in folder.glob(kind)]
        sums = {str(file.relative_to(self.job)): sha256_file(file) for file in files}
        rows = [json.loads(line) for line in (self.job / "metrics.jsonl").read_text().splitlines()]
        measured = {
            f"step {row['step']}: {name}": str(row[name])
            for row in rows
            for name in row
            if not name.startswith(TIMES)
        }
        return sums | measured


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--kills", type=int, default=20)
    given, rest = own.parse_known_args()
    options = arguments(__doc__ or "", rest)
    kills = 3 if options.quick else given.kills
    report = Report("kills")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        flags = made(root, options.quick)
        calm = Ground(root, "calm", flags)
        say("without a kill")
        began = time.perf_counter()
        process = calm.start()
        if process.wait(600):
            sys.exit("the job failed without any kill")
        whole = time.perf_counter() - began
        steps = json.loads((calm.job / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        shaken = Ground(root, "shaken", flags)
        found = kill(shaken, kills, step_seconds(calm))
        one, other = calm.left(), shaken.left()
        differ = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        if differ or found.left:
            sys.exit(f"NOT the same: {differ}; {found.left} processes left behind")
    report.ours = {
        "kills": float(sum(found.phases.values())),
        **{f"in {phase}": float(count) for phase, count in sorted(found.phases.items())},
        "while a checkpoint was written": float(found.saving),
        "steps of the job": float(steps),
        "steps done again, mean a kill": sum(found.again) / max(len(found.again), 1),
        "steps done again, most": float(max(found.again, default=0)),
        "seconds to the first phase, median": median(found.starts),
        "seconds to the first phase, most": max(found.starts),
        "seconds of the job without kills": whole,
        "files and rows that differ": 0.0,
        "processes left behind": 0.0,
    }
    report.show(options.json)


def made(root: Path, quick: bool) -> list[str]:
    """A model and a task; the flags of the job."""
    recipe = QUICK if quick else DemoRecipe()
    tokenizer = tokenizer_for(SEED)
    models.save(models.new(hf_config(recipe, tokenizer), seed=SEED), root / "model")
    tokenizer.save(root / "model")
    (root / "slow.py").write_text(SLOW)
    settings = {
        "steps": 6 if quick else 24,
        "prompts_per_step": 4 if quick else 8,
        "samples_per_prompt": 8,
        "lr": 1e-4,
        "kl": 0.05,
        "minibatches": 2,
        "eval_prompts": 8,
        "evaluate.every": 5,
        "save_every": 2,
    }
    flags = [f"--rl.{name}={value}" for name, value in settings.items()]
    return ["--model", str(root / "model"), "--task", f"{root / 'slow.py'}:TASK", *flags]


def step_seconds(ground: Ground) -> float:
    rows = [json.loads(line) for line in (ground.job / "metrics.jsonl").read_text().splitlines()]
    return median([row["seconds"] for row in rows if "seconds" in row])


def kill(ground: Ground, kills: int, step: float) -> Found:
    """Until the job has ended; after so many kills it is left alone."""
    found, moments, reached, start = Found(), random.Random(SEED), 0, 3.0
    while not ground.done():
        again = sum(found.phases.values()) < kills
        began = time.perf_counter()
        process = ground.start()
        early = again and moments.random() < STARTING
        if early:
            time.sleep(moments.uniform(0, start))
        else:
            while ground.now()[0] == "start" and process.poll() is None:
                time.sleep(0.002)
            start = time.perf_counter() - began
            found.starts.append(start)
            if again:
                last = first_step(ground) + moments.randrange(SPAN)
                while ground.now()[1] < last and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(moments.uniform(0, step))
        if not again:
            if process.wait(600):
                sys.exit("the job did not go on")
            break
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        if process.wait() == 0:
            break
        phase, at, beside = ground.now()
        found.phases[phase] += 1
        found.saving += beside == "save"
        first = first_step(ground)
        if phase not in ("start", "restore"):
            found.again.append(max(0, reached - first))
            reached = max(reached, at)
        found.left += len(psutil.wait_procs(family, GONE_SECONDS)[1])
        say(
            f"kill {sum(found.phases.values())} of {kills}: in {phase}, step {at}{', saving' if beside else ''}"
        )
    return found


def first_step(ground: Ground) -> int:
    """Where whoever comes next begins."""
    folder = ground.job / "checkpoints"
    whole = (
        [each for each in folder.glob("step_*") if (each / "manifest.json").exists()]
        if folder.is_dir()
        else []
    )
    return max((int(each.name.rpartition("_")[2]) for each in whole), default=0)


def _parts(data: bytes) -> list[bytes]:
    return [data[at : at + 32] for at in range(0, len(data), 32)]


if __name__ == "__main__":
    main()
