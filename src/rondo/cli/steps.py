"""Progress of a job's steps on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rondo.base.units import human_seconds

OnStep = Callable[[int, Mapping[str, float]], None]

PLAIN_SECONDS = 5.0
SHOWN = ("loss", "reward", "reward/correct", "lr", "tokens_per_second")


@contextlib.contextmanager
def step_progress(label: str, steps: int) -> Iterator[OnStep]:
    if not sys.stderr.isatty():
        yield _plain(label, steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=steps, facts="")

        def report(step: int, metrics: Mapping[str, float]) -> None:
            bars.update(task, completed=step, facts=facts(metrics))

        yield report


def facts(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)


def _plain(label: str, steps: int) -> OnStep:
    begin = last = time.monotonic()

    def report(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal last
        now = time.monotonic()
        if step == steps or now - last >= PLAIN_SECONDS:
            last = now
            print(
                f"{label}: step {step} of {steps}  {facts(metrics)}  {human_seconds(now - begin)}",
                file=sys.stderr,
            )

    return report
