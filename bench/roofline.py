"""Each kernel beside torch's own and beside what the machine gives: products for the shapes of Qwen3 0.6B, also with
quantized weights, decode attention over 8k tokens, and what is between them.

The limit of a kernel is the time its bytes take to be read, or its operations to be computed, at the rates measured
first, whichever is longer: of memory, and of the cores' instructions on numbers in registers. What it writes counts as
read. `--plot FILE.png` draws products and attention under these roofs.
"""

import argparse
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median, say
from rondo.client.bench.plot import need_plots
from rondo.ops.measure import probe
from rondo.ops.measure.limits import HardwareLimits, measure_limits
from rondo.ops.native.build.ahead import compile_all, runs

ROWS = (1, 4, 8, 16, 64, 256)
WEIGHTS = ((3072, 1024), (1024, 3072), (2048, 1024), (1024, 2048), (151936, 1024))
"""Gate and up, down, q, o, the head."""
SECONDS = 0.2
DPI = 120


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plot", type=Path)
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], rest, torch="the same by torch alone")
    if own.plot is not None:
        need_plots(own.plot)
    torch.set_num_threads(THREADS)
    compile_all()
    report, limits = Report("roofline"), measure_limits(1.0 if options.quick else 6.0)
    budget = 0.002 if options.quick else SECONDS
    rows, weights = ((1, 16), WEIGHTS[:1]) if options.quick else (ROWS, WEIGHTS)
    if "torch" in options.peers:
        report.peers["torch"] = {}
    asked = probe.cases(rows, weights, (8 if options.quick else 96) << 20)
    # Without its tensors, which would be tens of gigabytes together.
    found = [(replace(case, given=[]), measure(report, case, limits, budget)) for case in asked]
    summarize(report, [case for case, _ in found])
    rates = ", ".join(f"{rate / 1e9:.3g} Gflop/s in {name}" for name, rate in limits.flops.items())
    report.notes.append(f"{THREADS} threads, {runs('fp32')} in fp32, {runs('bf16')} in bf16")
    report.notes.append(f"the limit: {limits.read / 1e9:.1f} GB/s read, {rates}; microseconds a call")
    report.show(options.json)
    if own.plot is not None:
        draw(found, limits, own.plot)


def figure_of(case: probe.Case) -> str:
    return f"{case.operation} {case.dtype}, {case.sizes}"


def measure(report: Report, case: probe.Case, limits: HardwareLimits, budget: float) -> float:
    """Seconds of a call; in the report microseconds."""
    figure, (version, _) = figure_of(case), case.version()
    sides = {"rondo": lambda: case.seconds(budget)}
    if case.plain is not None and "torch" in report.peers:
        sides["torch"] = lambda: case.seconds(budget, case.plain)
    taken = {name: median(values) for name, values in alternate(3, **sides).items()}
    report.ours[figure], report.limit[figure] = 1e6 * taken["rondo"], 1e6 * case.limit(limits)
    if "torch" in taken:
        report.peers["torch"][figure] = 1e6 * taken["torch"]
    say(f"{figure}: {version}: {case.limit(limits) / taken['rondo']:.0%} of the limit")
    return taken["rondo"]


def summarize(report: Report, cases: list[probe.Case]) -> None:
    """The geometric mean over the sizes of each."""
    shares, ratios = defaultdict(list), defaultdict(list)
    for case in cases:
        figure, name = figure_of(case), f"{case.operation} {case.dtype}"
        shares[name].append(float(report.limit[figure]) / report.ours[figure])
        if figure in report.peers.get("torch", {}):
            ratios[name].append(float(report.peers["torch"][figure]) / report.ours[figure])
    for title, each in (("share of the limit", shares), ("beside torch", ratios)):
        for name, values in each.items():
            report.ratios[f"{name}, {title}"] = math.exp(sum(map(math.log, values)) / len(values))


def draw(found: list[tuple[probe.Case, float]], limits: HardwareLimits, file: Path) -> None:
    """Operations a second over operations a byte, both logarithmic: under a slope and a flat roof for what is
    multiplied."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    points = defaultdict(list)
    for case, seconds in found:
        if case.flops:
            points[f"{case.operation} {case.dtype}"].append(
                (case.flops / case.read, case.flops / seconds / 1e9)
            )
    for name, each in points.items():
        axes.plot(*zip(*sorted(each), strict=True), "o", label=name, alpha=0.8, markersize=4)
    ends = [
        min(x for each in points.values() for x, _ in each),
        max(x for each in points.values() for x, _ in each),
    ]
    grid = [ends[0] * (ends[1] / ends[0]) ** (i / 100) for i in range(101)]
    for name, style in zip(limits.flops, ("-", "--", "-.", ":"), strict=False):
        roof = [min(x * limits.read, limits.rate(name)) / 1e9 for x in grid]
        axes.plot(grid, roof, style, color="black", label=f"limit, {name}")
    axes.set(xscale="log", yscale="log", xlabel="operations a byte read", ylabel="Gflop/s")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(file, dpi=DPI)


if __name__ == "__main__":
    main()
