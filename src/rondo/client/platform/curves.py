"""State and curves of a job as HTML with inline SVG, without a library."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, EDGE = 320, 120, 18
POINTS = 400
CURVES = ("loss", "reward", "held_out/loss", "evaluate/loss", "held_out/reward", "accuracy")
"""Shown metrics, at most the first three that a job has."""
SHOWN = 3


def curves_html(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    step = (
        ""
        if facts["step"] is None
        else f", step {facts['step']}" + (f" of {facts['steps']}" if facts["steps"] else "")
    )
    error = facts["error"] or {}
    told = f"<div>{html.escape(str(error['message']))}</div>" if error.get("message") else ""
    title = f"{facts['kind']} {facts['model']}: {facts['state']}{step}"
    names = [name for name in CURVES if any(_finite(row.get(name)) for row in rows)][:SHOWN]
    drawn = "".join(_curve(name, _points(name, rows)) for name in names)
    return (
        f"<div><b>{html.escape(title)}</b> <code>{html.escape(str(facts['id']))}</code>{told}"
        f'<div style="display:flex;flex-wrap:wrap;gap:12px">{drawn}</div></div>'
    )


def _points(name: str, rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    found = [(float(row["step"]), float(row[name])) for row in rows if _finite(row.get(name))]
    every = max(-(-len(found) // POINTS), 1)
    thinned = found[::every]
    return thinned if thinned[-1] == found[-1] else [*thinned, found[-1]]


def _curve(name: str, points: Sequence[tuple[float, float]]) -> str:
    steps, values = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    across, up = (right - left) or 1.0, (high - low) or 1.0
    line = " ".join(
        f"{EDGE + (x - left) / across * (WIDTH - 2 * EDGE):.1f},"
        f"{HEIGHT - EDGE - (y - low) / up * (HEIGHT - 2 * EDGE):.1f}"
        for x, y in points
    )
    label = f"{name} {values[-1]:.4g}"
    bounds = f"{low:.4g} to {high:.4g}, steps {left:g} to {right:g}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        f'<text x="{EDGE}" y="13" font-size="12" fill="currentColor">{html.escape(label)}</text>'
        f'<polyline points="{line}" fill="none" stroke="#2f6fde" stroke-width="1.5"/>'
        f'<text x="{EDGE}" y="{HEIGHT - 4}" font-size="10" fill="currentColor">{bounds}</text></svg>'
    )


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
