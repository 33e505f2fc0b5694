"""Progress of a job's steps on standard error: a live block on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.units import human_seconds

if TYPE_CHECKING:
    from rondo.jobs.job import Job

OnStep = Callable[[int, Mapping[str, float]], None]
OnResume = Callable[[int], None]

PLAIN_SECONDS = 5.0
ASKED = "evaluate/"
"""Prefix of metrics that only some steps have."""
SHOWN = ("loss", "reward", "reward/correct", "lr", "tokens_per_second", "mfu")


def follow(job: Job, label: str, steps: int, work: Callable[[OnStep, OnResume], Path]) -> int:
    """Does the work of a job under the eyes of its user; its last word, on standard output, is the result's place."""
    print(f"job {job.short} in {job.path}", file=sys.stderr)
    if job.done:
        print("it was done already: this is its model. Change a setting to train anew", file=sys.stderr)

    def on_resume(step: int) -> None:
        print(f"it goes on from step {step} of {steps}", file=sys.stderr)

    with step_progress(label, steps) as report:
        path = work(report, on_resume)
    print(path)
    return 0


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
    names = [name for name in SHOWN if name in metrics] + [name for name in metrics if name.startswith(ASKED)]
    return "  ".join(f"{name} {metrics[name] + 0.0:.4g}" for name in names)


def _plain(label: str, steps: int) -> OnStep:
    begin = last = time.monotonic()

    def report(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal last
        now = time.monotonic()
        evaluated = any(name.startswith(ASKED) for name in metrics)
        if step == steps or evaluated or now - last >= PLAIN_SECONDS:
            last = now
            print(
                f"{label}: step {step} of {steps}  {facts(metrics)}  {human_seconds(now - begin)}",
                file=sys.stderr,
            )

    return report
