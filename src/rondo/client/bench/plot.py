"""A picture of a benchmark: how the latencies are spread, or how they and the throughput go with the rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rondo.base.errors import MissingExtra
from rondo.client.bench.figures import METRICS, tpot
from rondo.client.bench.report import Run


def need_plots() -> None:
    """Before minutes of load, not after them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None


def save_plot(runs: Sequence[Run], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    if len(runs) == 1:
        _spreads(figure, runs[0])
    else:
        _rates(figure, runs)
    figure.savefig(file, dpi=120)


def _spreads(figure: Any, run: Run) -> None:
    """The share of requests (of gaps, for ITL) that took at most so long."""
    good = [outcome for outcome in run.outcomes if outcome.ok]
    values = {
        "ttft": [outcome.first for outcome in good],
        "tpot": [tpot(outcome) for outcome in good],
        "itl": [gap for outcome in good for gap in outcome.gaps],
        "e2el": [outcome.latency for outcome in good],
    }
    for axes, (name, each) in zip(figure.subplots(1, len(values)), values.items(), strict=True):
        ordered = sorted(value * 1000 for value in each)
        axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post")
        axes.set(title=METRICS[name][0], xlabel="ms", ylim=(0, 1))
        axes.grid(alpha=0.3)


def _rates(figure: Any, runs: Sequence[Run]) -> None:
    names = [f"{run.rate:g}" for run in runs]
    left, middle, right = figure.subplots(1, 3)
    left.plot(names, [run.figures.output_throughput for run in runs], marker="o")
    left.set(title="output tokens/s", xlabel="requests/s")
    for axes, name in ((middle, "ttft"), (right, "tpot")):
        spreads = [run.figures.spreads[name] for run in runs]
        axes.plot(names, [spread.median for spread in spreads], marker="o", label="median")
        for at in spreads[0].percentiles:
            axes.plot(names, [spread.percentiles[at] for spread in spreads], marker="o", label=f"p{at:g}")
        axes.set(title=f"{METRICS[name][0]}, ms", xlabel="requests/s")
        axes.legend()
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
