"""Tuning of the work split of products on this machine: within `SECONDS`, once for each machine and shape.

The measure is the CPU time of the slowest thread, so that a busy machine selects about the same split as an idle one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import cycle

import torch

from rondo.base.telemetry.log import get_logger
from rondo.ops.native.build import tuned
from rondo.ops.native.build.build import library
from rondo.ops.native.build.tuned import AS_BUILT, COLUMNS, FEWS, Product, TunedSplit, WorkSplit
from rondo.ops.native.gemm.linear import TYPES, product

log = get_logger(__name__)

SECONDS = 2.0
"""Time budget at one start; remaining products are tuned at the next."""
ROUNDS = 6
"""Rounds for each product; a round measures every candidate once, and the fastest round counts."""
ROWS_EACH = (8, 10, 12, 14, 16, 20, 24, 28)
"""Rows a thread, with two values between any two of `FEWS`."""
MANY_ROWS = 64
LEAST_GAIN = 1.03
"""Minimum speedup over the default; smaller gains may be noise."""
SMALLEST, LARGEST = 1 << 16, 1 << 22
"""Weights with fewer numbers are not tuned; of larger ones, a part of LARGEST numbers is measured."""
COPIES = 3
"""Copies of the weight, used in turn, so that it is read from about as far away in the memory hierarchy as in a
model."""
UNIT = 16
"""Unit of columns in a split."""

Way = tuple[str, int]
"""("rows" or "columns" shared among threads, rows a thread) or ("block", columns)."""


def tune(products: Iterable[Product], seconds: float = SECONDS) -> dict[str, TunedSplit]:
    """Applies stored results for these products, and measures the others while there is time; returns all results, by
    the products' names."""
    wanted = [each for each in dict.fromkeys(products) if _matters(each)]
    if library("linear") is None or not wanted:
        return {}
    known, end, tried = tuned.read(), time.perf_counter() + seconds, {}
    for each in wanted:
        found = known.get(each.name) or _tried(each, end)
        if found is None:
            break
        tuned.use(each, found)
        if each.name not in known:
            tried[each.name] = found
    if tried:
        tuned.add(tried)
        log.info("products were tuned", extra={"products": len(tried), "file": str(tuned.path())})
    return known | tried


def _matters(each: Product) -> bool:
    rounds = each.dtype != torch.float32
    return each.dtype in TYPES and each.width * each.inputs >= SMALLEST and (each.threads > 1 or rounds)


def _tried(each: Product, end: float) -> TunedSplit | None:
    """Measures a product; None if the time runs out."""
    ways = ways_of(each)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            if time.perf_counter() > end:
                return None
            best[name] = min(best[name], way())
    return chosen(best)


def ways_of(each: Product) -> dict[Way, Callable[[], float]]:
    """All candidates of a product, on random numbers, each with a function that returns its seconds."""
    generator = torch.Generator().manual_seed(0)
    width = max(UNIT, min(each.width, LARGEST // each.inputs // UNIT * UNIT))
    weight = torch.randn(width, each.inputs, generator=generator).to(each.dtype)
    weights = cycle([weight, *(weight.clone() for _ in range(COPIES - 1))])
    most = max(MANY_ROWS, max(ROWS_EACH) * each.threads)
    x = torch.randn(most, each.inputs, generator=generator).to(each.dtype)

    def timed(rows: int, cut: WorkSplit, threads: int) -> Callable[[], float]:
        def once() -> float:
            seconds = torch.zeros(threads, dtype=torch.float64)
            product(x[:rows], next(weights), None, cut, threads, seconds)
            return float(seconds.max())

        return once

    ways: dict[Way, Callable[[], float]] = {}
    if each.threads > 1:
        for what, few in (("rows", 0), ("columns", most + 1)):
            for rows in ROWS_EACH:
                cut = WorkSplit(few=few)
                ways[what, rows] = timed(rows * each.threads, cut, each.threads)
    if each.dtype != torch.float32:
        for columns in COLUMNS:
            ways["block", columns] = timed(MANY_ROWS, WorkSplit(columns=columns), 1)
    return ways


def chosen(seconds: Mapping[Way, float]) -> TunedSplit:
    """The best split from the seconds of each candidate."""

    def share(rows: int, few: int) -> float:
        return seconds["columns" if rows < few else "rows", rows]

    def shared(few: int) -> float:
        """Total time over all row counts for a limit `few`, relative to the default."""
        return sum(share(rows, few) / share(rows, AS_BUILT.few) for rows in ROWS_EACH)

    few, with_few = AS_BUILT.few, 1.0
    if any(what == "rows" for what, _ in seconds):
        few, with_few = _better(AS_BUILT.few, {few: shared(few) for few in FEWS})
    blocks = {columns: taken for (what, columns), taken in seconds.items() if what == "block"}
    columns, with_many = _better(AS_BUILT.columns, blocks) if blocks else (AS_BUILT.columns, 1.0)
    return TunedSplit(few=few, columns=columns, times_with_few_rows=with_few, times_with_many_rows=with_many)


def _better(built: int, seconds: Mapping[int, float]) -> tuple[int, float]:
    best = min(seconds, key=lambda value: seconds[value])
    times = seconds[built] / seconds[best]
    return (best, min(times, 100.0)) if times >= LEAST_GAIN else (built, 1.0)
