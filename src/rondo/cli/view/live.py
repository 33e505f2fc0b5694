"""Live view of a running job: one block of the terminal, redrawn repeatedly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rondo.base.telemetry.activity import display
from rondo.base.units import human_bytes, human_seconds
from rondo.cli.view.sparkline import sparkline
from rondo.jobs.session import HELD_OUT

CURVES = ("reward", "loss")
ALARM = "alarm/"
"""Prefix of alarm metrics."""
REFRESH = 4
"""Times a second."""
RECENT = 20
"""Steps that the time to the end is judged by."""
LABEL = 10


class LiveView:
    """Of one job. It is drawn again at its own pace, however quick the steps are."""

    def __init__(self, label: str, steps: int) -> None:
        self._label, self._steps = label, steps
        self._step = 0
        self._metrics: Mapping[str, float] = {}
        self._curves: dict[str, list[float]] = {name: [] for name in CURVES}
        self._evaluated: dict[str, float] = {}
        self._begin = time.monotonic()
        self._ends: list[tuple[int, float]] = []

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step, self._metrics = step, metrics
        self._evaluated |= {name: value for name, value in metrics.items() if name.startswith(HELD_OUT)}
        for name, curve in self._curves.items():
            if name in metrics:
                curve.append(metrics[name] + 0.0)
        self._ends = [*self._ends[-RECENT:], (step, time.monotonic())]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        bar = ProgressBar(self._steps, self._step, width=max(10, min(40, width - 60)))
        yield _row(self._label, bar, Text(self._progress()))
        for name, curve in self._curves.items():
            if curve:
                value = f"{curve[-1]:<9.4g}"
                line = sparkline(curve, max(8, min(60, width - LABEL - len(value) - 4)))
                yield _row(name, Text(value), Text(line, style="cyan"))
        for name, facts in self._lines():
            yield _row(name, Text("   ".join(facts)))

    def _progress(self) -> str:
        said = f"step {self._step} of {self._steps}   {human_seconds(time.monotonic() - self._begin)}"
        left = self._left()
        return said if left is None else f"{said}, {human_seconds(left)} to go"

    def _left(self) -> float | None:
        if len(self._ends) < 2 or self._step >= self._steps:
            return None
        (first, then), (last, now) = self._ends[0], self._ends[-1]
        return (self._steps - last) * (now - then) / (last - first)

    def _lines(self) -> Iterator[tuple[str, list[str]]]:
        metrics = self._metrics
        if "tokens_per_second" in metrics:
            yield "tokens/s", [f"{metrics['tokens_per_second']:,.0f}", *_mfu(metrics)]
        memory = _memory(metrics)
        if memory:
            yield "memory", [memory]
        facts = [
            f"{name} {metrics[key]:{form}}"
            for key, name, form in (
                ("lr", "lr", ".3g"),
                ("grad_norm", "gradient", ".3g"),
                ("loader_share", "loading", ".1%"),
                ("epochs", "epoch", ".2f"),
                ("reward/correct", "correct", ".1%"),
            )
            if key in metrics
        ]
        if facts:
            yield "step", facts
        alarms = [name.removeprefix(ALARM) for name in metrics if name.startswith(ALARM)]
        if alarms:
            yield "alarm", [*alarms, "`rondo rl alarms` says more"]
        if self._evaluated:
            yield "evaluate", [f"{name.partition('/')[2]} {x:.4g}" for name, x in self._evaluated.items()]


@contextmanager
def live(label: str, steps: int) -> Iterator[LiveView]:
    """Other output to the terminal appears above the block; its last state remains."""
    block = LiveView(label, steps)
    with (
        display(None),
        Live(block, console=Console(stderr=True, highlight=False), refresh_per_second=REFRESH),
    ):
        yield block


def _row(label: str, *cells: ProgressBar | Text) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=LABEL, no_wrap=True, style="dim")
    for _ in cells:
        grid.add_column(no_wrap=True)
    grid.add_row(label, *cells)
    return grid


def _mfu(metrics: Mapping[str, float]) -> list[str]:
    peak = next((name for name in metrics if name.startswith("peak_flops/")), None)
    if peak is None or "mfu" not in metrics:
        return []
    most = f"{metrics[peak] / 1e12:.3g} Tflop/s {peak.partition('/')[2]}"
    return [f"mfu {metrics['mfu']:.1%} (causal {metrics['mfu_causal']:.1%}) of {most}"]


def _memory(metrics: Mapping[str, float]) -> str:
    for name in ("memory/allocated", "memory/resident"):
        if name in metrics:
            return f"{human_bytes(metrics[name])}, at most {human_bytes(metrics[name + '_peak'])}"
    return ""
