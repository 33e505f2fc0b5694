"""`rondo job metrics`: the curves of a job, or its figures step by step."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.sparkline import sparkline
from rondo.cli.view.table import aligned
from rondo.jobs.job import Job

WIDTH = 40
"""Of a curve."""
ROWS = 20


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo job metrics",
        "The curve of each metric of a job; of those that are named, the figures of some steps.",
    )
    parser.add_argument(
        "job", metavar="JOB", help="a job's name, or the first 6 or more characters of its hash"
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="metrics, such as loss tokens_per_second")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"the most steps to print ({ROWS})")
    parser.add_argument("--json", action="store_true", help="print one JSON array of all steps")
    given = parser.parse_args(argv)
    rows = Job.find(given.job).metrics()
    names = given.names or _names(rows)
    _check(given.names, rows)
    if given.json:
        print(json.dumps([{name: row[name] for name in ("step", *names) if name in row} for row in rows]))
    elif not rows:
        print("It has done no step yet.")
    else:
        print("\n".join(_steps(rows, names, given.rows) if given.names else _curves(rows, names)))
    return 0


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name != "step"]


def _check(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    known = _names(rows)
    for name in names:
        if known and name not in known:
            raise InvalidRequest(f"the job has no metric {name!r}; it has {', '.join(known)}.")


def _curves(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    table = [["metric", "first", "last", "least", "most", f"steps {rows[0]['step']} to {rows[-1]['step']}"]]
    for name in names:
        values = [float(row[name]) for row in rows if name in row]
        finite = [value for value in values if math.isfinite(value)] or [math.nan]
        figures = (values[0], values[-1], min(finite), max(finite))
        table.append([name, *map(_number, figures), sparkline(values, WIDTH)])
    return aligned(table)


def _steps(rows: Sequence[dict[str, Any]], names: Sequence[str], most: int) -> list[str]:
    """The last step, and others as evenly apart as can be."""
    count = min(max(1, most), len(rows))
    chosen = [rows[len(rows) * (i + 1) // count - 1] for i in range(count)]
    figures = [[_number(row[name]) if name in row else "-" for name in names] for row in chosen]
    table = [[str(row["step"]), *own] for row, own in zip(chosen, figures, strict=True)]
    return aligned([["step", *names], *table])


def _number(value: float) -> str:
    """Adding 0.0 turns -0.0, which means nothing to a reader, into 0."""
    return f"{value + 0.0:.4g}"
