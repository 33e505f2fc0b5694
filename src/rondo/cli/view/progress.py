"""Progress on standard error: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rondo.base.units import human_bytes, human_count, human_seconds

if TYPE_CHECKING:
    from rondo.data.preparation.prepare import Progress

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


@contextlib.contextmanager
def token_progress(label: str) -> Iterator[Callable[[Progress], None]]:
    """Of `rondo data prepare`: bytes of text read, and tokens made of it."""
    began = spoke = time.monotonic()
    last: list[Progress] = []
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=None, told="")
            yield lambda now: bars.update(task, completed=now.bytes, total=now.of_bytes, told=_tokens(now))
        return

    def report(now: Progress) -> None:
        nonlocal spoke
        last[:] = [now]
        if time.monotonic() - spoke >= PLAIN_SECONDS:
            spoke = time.monotonic()
            print(
                f"{label}: {human_bytes(now.bytes)} of {human_bytes(now.of_bytes)}, {_tokens(now)}",
                file=sys.stderr,
            )

    yield report
    for now in last:
        print(f"{label}: {_tokens(now)}, done in {human_seconds(time.monotonic() - began)}", file=sys.stderr)


def _tokens(now: Progress) -> str:
    broken = f", {now.broken} broken" if now.broken else ""
    return f"{human_count(now.tokens)} tokens, {human_count(int(now.tokens_per_second))}/s{broken}"


@contextlib.contextmanager
def count_progress(label: str) -> Iterator[Callable[[int, int, int], None]]:
    """Of `rondo generate`: yields a function of the numbers of ended, failed and all requests."""
    if not sys.stderr.isatty():
        yield _plain_counts(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=None, amount="")

        def report(done: int, failed: int, total: int) -> None:
            bars.update(task, completed=done, total=total, amount=_counts(done, failed, total))

        yield report


def _plain_counts(label: str) -> Callable[[int, int, int], None]:
    spoke = time.monotonic() - PLAIN_SECONDS

    def report(done: int, failed: int, total: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke >= PLAIN_SECONDS or done == total:
            spoke = time.monotonic()
            print(f"{label}: {_counts(done, failed, total)}", file=sys.stderr)

    return report


def _counts(done: int, failed: int, total: int) -> str:
    return f"{done:,} of {total:,}" + (f", {failed:,} failed" if failed else "")
