"""Report of a benchmark: vLLM's lines, and the keys of its JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rondo.client.bench.figures import METRICS, Figures
from rondo.client.bench.load import RequestOutcome

WIDTH = 50
SHOWN_ERRORS = 10


@dataclass(frozen=True)
class LoadRun:
    """One load and its results."""

    rate: float
    max_concurrency: int | None
    outcomes: Sequence[RequestOutcome]
    figures: Figures


def lines(run: LoadRun, metrics: Sequence[str]) -> list[str]:
    figures = run.figures
    shown = [_title(" Serving Benchmark Result ", "="), _count("Successful requests:", figures.completed)]
    shown.append(_count("Failed requests:", figures.failed))
    if run.max_concurrency is not None:
        shown.append(_count("Maximum request concurrency:", run.max_concurrency))
    if not math.isinf(run.rate):
        shown.append(_number("Request rate configured (RPS):", run.rate))
    shown += [
        _number("Benchmark duration (s):", figures.duration),
        _count("Total input tokens:", figures.total_input),
        _count("Total generated tokens:", figures.total_output),
        _number("Request throughput (req/s):", figures.request_throughput),
    ]
    if figures.request_goodput is not None:
        shown.append(_number("Request goodput (req/s):", figures.request_goodput))
    shown += [
        _number("Output token throughput (tok/s):", figures.output_throughput),
        _number("Peak output token throughput (tok/s):", figures.max_output_tokens_per_s),
        _number("Peak concurrent requests:", figures.max_concurrent_requests),
        _number("Total token throughput (tok/s):", figures.total_token_throughput),
    ]
    for metric in metrics:
        shown += _spread_lines(metric, figures)
    return [*shown, "=" * WIDTH]


def _spread_lines(metric: str, figures: Figures) -> list[str]:
    short, long = METRICS[metric]
    spread = figures.spreads[metric]
    shown = [_title(long, "-"), _number(f"Mean {short} (ms):", spread.mean)]
    shown.append(_number(f"Median {short} (ms):", spread.median))
    return shown + [_number(f"P{at:g} {short} (ms):", value) for at, value in spread.percentiles.items()]


def _title(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _count(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}".rstrip()


def _number(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}".rstrip()


def failures(run: LoadRun) -> list[str]:
    """Error messages, each once, most frequent first."""
    counts: dict[str, int] = {}
    for outcome in run.outcomes:
        if outcome.error:
            counts[outcome.error] = counts.get(outcome.error, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return [f"{times} failed: {error}" for error, times in ordered[:SHOWN_ERRORS]]


def table(runs: Sequence[LoadRun]) -> list[str]:
    """One line a rate, of a sweep."""
    head = ["rate", "req/s", "output tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "failed"]
    rows = [head]
    for run in runs:
        ttft, tpot = run.figures.spreads["ttft"], run.figures.spreads["tpot"]
        cells = [
            f"{run.rate:g}",
            f"{run.figures.request_throughput:.2f}",
            f"{run.figures.output_throughput:.1f}",
        ]
        for spread in (ttft, tpot):
            cells += [f"{spread.median:.1f}", f"{max(spread.percentiles.values()):.1f}"]
        rows.append([*cells, str(run.figures.failed)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def as_json(run: LoadRun, about: dict[str, Any], detailed: bool) -> dict[str, Any]:
    figures = run.figures
    result: dict[str, Any] = about | {
        "request_rate": "inf" if math.isinf(run.rate) else run.rate,
        "max_concurrency": run.max_concurrency,
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.total_input,
        "total_output_tokens": figures.total_output,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "max_output_tokens_per_s": figures.max_output_tokens_per_s,
        "max_concurrent_requests": figures.max_concurrent_requests,
    }
    for name, spread in figures.spreads.items():
        result |= {
            f"mean_{name}_ms": spread.mean,
            f"median_{name}_ms": spread.median,
            f"std_{name}_ms": spread.std,
        }
        result |= {f"p{at:g}_{name}_ms": value for at, value in spread.percentiles.items()}
    if detailed:
        result |= {
            "input_lens": [outcome.prompt_tokens for outcome in run.outcomes],
            "output_lens": [outcome.output_tokens for outcome in run.outcomes],
            "ttfts": [outcome.first for outcome in run.outcomes],
            "itls": [outcome.gaps for outcome in run.outcomes],
            "errors": [outcome.error for outcome in run.outcomes],
        }
    return result
