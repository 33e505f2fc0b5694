"""Progress of a job's steps on standard error: a live block on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.units import human_seconds
from rondo.jobs import attempt
from rondo.jobs.folders import update_origin
from rondo.jobs.session import HELD_OUT

if TYPE_CHECKING:
    from rondo.jobs.job import Job
    from rondo.parallel.ranks.crew import Paused

OnStep = Callable[[int, Mapping[str, float]], None]
OnResume = Callable[[int], None]

PLAIN_SECONDS = 5.0
ABORTED = 130
SHOWN = ("loss", "reward", "reward/correct", "lr", "tokens_per_second", "mfu")


def follow(job: Job, label: str, steps: int, work: Callable[[OnStep, OnResume], Path]) -> int:
    """Do the work of a job and show its progress; the last line, on standard output, is the result's folder."""
    attempt.report(hash=job.name, steps=steps)
    print(f"job {_called(job)} in {job.path}", file=sys.stderr)
    if job.done:
        print("it was done already: this is its model. Change a setting to train anew", file=sys.stderr)
    else:
        update_origin(job.path, command=command_line())

    def on_resume(step: int) -> None:
        print(f"it goes on from step {step} of {steps}", file=sys.stderr)

    with step_progress(label, steps) as report:
        path = work(report, on_resume)
    print(path)
    print(f"report: {job.path / 'report.html'}", file=sys.stderr)
    return 0


def command_line() -> str:
    """This process's command, to type again: under torchrun the launcher's own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        with contextlib.suppress(OSError):
            parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
            words = [word for word in parent if word]
            if "torchrun" in Path(words[1]).name:
                return shlex.join(["torchrun", *words[2:]])
            if "torch.distributed" in " ".join(words[:4]):
                return shlex.join(["python", *words[1:]])
    program = Path(sys.argv[0]).name
    return shlex.join([*(["rondo"] if program == "rondo" else ["python", "-m", "rondo"]), *sys.argv[1:]])


def say_paused(pause: Paused) -> int:
    """Report a stopped job and the command that resumes it; the exit code."""
    print(f"{pause}. Resume with:\n\n  {command_line()}\n", file=sys.stderr)
    return pause.exit_code


def say_aborted() -> int:
    print(f"aborted. Resume from the last checkpoint with:\n\n  {command_line()}\n", file=sys.stderr)
    return ABORTED


def _called(job: Job) -> str:
    return job.short if job.label == job.short else f"{job.label} ({job.short})"


@contextlib.contextmanager
def step_progress(label: str, steps: int) -> Iterator[OnStep]:
    if not sys.stderr.isatty():
        yield _plain(label, steps)
        return
    from rondo.cli.view.live import live

    with live(label, steps) as block:
        yield block.report


def facts(metrics: Mapping[str, float]) -> str:
    """Adding 0.0 turns -0.0, which means nothing to a reader, into 0."""
    names = [name for name in SHOWN if name in metrics] + [
        name for name in metrics if name.startswith(HELD_OUT)
    ]
    return "  ".join(f"{name} {metrics[name] + 0.0:.4g}" for name in names)


def _plain(label: str, steps: int) -> OnStep:
    begin = last = time.monotonic()

    def report(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal last
        now = time.monotonic()
        evaluated = any(name.startswith(HELD_OUT) for name in metrics)
        if step == steps or evaluated or now - last >= PLAIN_SECONDS:
            last = now
            print(
                f"{label}: step {step} of {steps}  {facts(metrics)}  {human_seconds(now - begin)}",
                file=sys.stderr,
            )

    return report
