"""Progress on standard error: a bar on a terminal, a few plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rondo.base.units import human_bytes, human_seconds

PLAIN_SECONDS = 5.0


@contextlib.contextmanager
def byte_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (stage, bytes done, bytes in all); a total of 0 means it cannot be known."""
    if sys.stderr.isatty():
        with _bar(label) as report:
            yield report
    else:
        yield _plain(label)


@contextlib.contextmanager
def _bar(label: str) -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        stages = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(f"{label}: {stage}", total=total or None, amount="")
            amount = f"{human_bytes(done)} of {human_bytes(total)}" if total else ""
            bars.update(stages[stage], completed=done, amount=amount)

        yield report
        for task in bars.tasks:
            if task.total is None:
                bars.update(task.id, total=1, completed=1)


def _plain(label: str) -> Callable[[str, int, int], None]:
    """A line when a stage begins, one every few seconds, and one when it is complete."""
    began: dict[str, float] = {}
    spoke: dict[str, float] = {}
    complete: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        clock = time.monotonic()
        if stage not in began:
            began[stage] = spoke[stage] = clock
            print(f"{label}: {stage}" + (f" {human_bytes(total)}" if total else ""), file=sys.stderr)
        if not total or stage in complete:
            return
        if done >= total:
            complete.add(stage)
            print(f"{label}: {stage} done in {human_seconds(clock - began[stage])}", file=sys.stderr)
        elif clock - spoke[stage] >= PLAIN_SECONDS:
            spoke[stage] = clock
            print(f"{label}: {stage} {human_bytes(done)} of {human_bytes(total)}", file=sys.stderr)

    return report
