"""A picture of a benchmark: how the latencies are spread, or how they and the throughput go with the rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError, MissingExtra
from rondo.base.storage.files import storage_error
from rondo.client.bench.figures import METRICS, tpot
from rondo.client.bench.report import LoadRun

DPI = 120
STYLES = ("--", ":", "-.")


def need_plots(file: Path) -> None:
    """Before minutes of load, not after them."""
    try:
        import matplotlib.figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    kinds = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if file.suffix[1:].lower() not in kinds:
        raise ConfigError(
            f"--plot {file.name}: a picture ends in .{', .'.join(sorted(kinds))}.", param="plot"
        )


def save_plot(runs: Sequence[LoadRun], file: Path) -> None:
    figure = _figure()
    if len(runs) == 1:
        _spreads(figure, runs[0])
    else:
        _rates(figure, {"": runs})
    _save(figure, file)


def save_sweeps(servers: Mapping[str, Sequence[LoadRun]], file: Path) -> None:
    """Several servers at the same rates, each with its name."""
    figure = _figure()
    _rates(figure, servers)
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=DPI)
    except OSError as error:
        raise storage_error(file, error) from error


def _figure() -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 4), layout="constrained")


def _spreads(figure: Any, run: LoadRun) -> None:
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


def _rates(figure: Any, servers: Mapping[str, Sequence[LoadRun]]) -> None:
    """Percentiles of a server are drawn in its colour, broken."""
    left, middle, right = figure.subplots(1, 3)
    for number, (server, runs) in enumerate(servers.items()):
        rates = [f"{run.rate:g}" for run in runs]
        colour = f"C{number}"
        left.plot(rates, [run.figures.output_throughput for run in runs], colour, marker="o", label=server)
        for axes, name in ((middle, "ttft"), (right, "tpot")):
            spreads = [run.figures.spreads[name] for run in runs]
            label = f"{server} median".strip()
            axes.plot(rates, [spread.median for spread in spreads], colour, marker="o", label=label)
            for at, style in zip(spreads[0].percentiles, STYLES, strict=False):
                label = f"{server} p{at:g}".strip()
                values = [spread.percentiles[at] for spread in spreads]
                axes.plot(rates, values, colour, linestyle=style, marker=".", label=label)
    left.set(title="output tokens/s", xlabel="requests/s", ylim=(0, None))
    for axes, name in ((middle, "ttft"), (right, "tpot")):
        axes.set(title=f"{METRICS[name][0]}, ms", xlabel="requests/s", yscale="log")
        axes.legend(fontsize="small")
    if len(servers) > 1:
        left.legend(fontsize="small")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
