"""A job's report, `report.md` and `report.html` in its folder: result, curves, samples before and after, cost, settings
and the next commands.

The HTML page is one file without external resources: styles and curves (SVG) are inside.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rondo.base.storage.files import atomic_write
from rondo.base.units import human_bytes, human_count, human_seconds
from rondo.jobs.job import Job
from rondo.jobs.samples import SampledAnswer, before_and_after
from rondo.jobs.summary import JobSummary, shown_score, summary_of

SESSIONS = "sessions.jsonl"
"""One line per process that worked on the job: begin, end, process ID, host, state at its end."""
SAMPLES = 5
TEXT = 600
"""Characters of a prompt or an answer in the report."""
CURVES: Mapping[str, tuple[str, ...]] = {
    "Loss": ("loss", "evaluate/loss"),
    "Reward": ("reward", "held_out/reward"),
    "Correct answers": ("reward/correct", "held_out/reward/correct", "evaluate/reward/correct"),
    "Accuracy": ("accuracy", "token_accuracy", "evaluate/accuracy", "evaluate/token_accuracy"),
    "Learning rate": ("lr",),
    "Gradient norm": ("grad_norm",),
    "Tokens per second": ("tokens_per_second",),
    "Tokens per answer": ("answer_tokens", "answer_tokens_max"),
    "KL divergence": ("kl", "sampler_kl"),
    "Entropy": ("entropy", "sampled_entropy"),
}
"""Metrics of each chart; a chart without values is left out."""
COLORS = ("#2563eb", "#dc2626", "#059669")
WIDTH, HEIGHT, MARGIN = 420, 180, 60
MOST_POINTS = 400
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#1f2328}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #d0d7de}
table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}
pre,code{font-family:ui-monospace,monospace;font-size:13px}
pre{background:#f6f8fa;padding:.8em;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere}
.charts{display:flex;flex-wrap:wrap;gap:12px}figure{margin:0;width:420px}figcaption{font-size:13px;color:#59636e}
svg{background:#fff;border:1px solid #d0d7de;border-radius:6px}svg text{font-size:11px;fill:#59636e}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}pre{background:#161b22}
h2{border-color:#30363d}svg{background:#161b22;border-color:#30363d}svg text{fill:#9198a1}}"""


@dataclass(frozen=True)
class ReportFacts:
    """Contents of a report, independent of its format."""

    summary: JobSummary
    path: Path
    result: Path | None
    reason: str
    rows: Sequence[Mapping[str, Any]]
    samples: Sequence[tuple[SampledAnswer, SampledAnswer]]
    cost: Mapping[str, str]
    settings: Mapping[str, Any]
    commands: Mapping[str, str]

    @property
    def title(self) -> str:
        return f"{self.summary.kind or 'job'} {self.summary.label}"

    @property
    def state(self) -> str:
        return self.summary.state + (f": {self.reason}" if self.reason else "")

    @property
    def facts(self) -> dict[str, str]:
        of, clock = self.summary, time.strftime("%Y-%m-%d %H:%M", time.localtime(self.summary.started))
        return {
            "State": self.state,
            "Step": f"{of.step} of {of.steps}" if of.steps else str(of.step),
            "Score": shown_score(of.score),
            "Base model": of.model or "-",
            "Job": of.job,
            "Folder": str(self.path),
            "Result": str(self.result) if self.result else "none yet",
            "Started": clock,
            **self.cost,
        }

    def values(self, metric: str) -> list[tuple[float, float]]:
        """Finite values of a metric by step."""
        return [
            (row["step"], float(row[metric]))
            for row in self.rows
            if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])
        ]

    def charts(self) -> dict[str, dict[str, list[tuple[float, float]]]]:
        found = {}
        for title, metrics in CURVES.items():
            curves = {metric: values for metric in metrics if (values := self.values(metric))}
            if any(len(values) > 1 for values in curves.values()):
                found[title] = curves
        return found


def write_report(job: Job) -> Path:
    """Write both files, and return the HTML file."""
    found = facts_of(job)
    atomic_write(job.path / "report.md", markdown(found))
    atomic_write(job.path / "report.html", html(found))
    return job.path / "report.html"


def facts_of(job: Job) -> ReportFacts:
    rows = job.metrics()
    status = job.status()
    ended = {name: value for name, value in status.items() if name.startswith("held_out/")}
    if ended:
        rows = [*rows, {"step": status.get("step", 0), **ended}]
    result = job.result if job.done else None
    return ReportFacts(
        summary=summary_of(job),
        path=job.path,
        result=result,
        reason=str(status.get("reason") or ""),
        rows=rows,
        samples=before_and_after(job.path, SAMPLES),
        cost=_cost(job, rows),
        settings=job.spec().get("config", {}),
        commands=_commands(job, result),
    )


def sessions_of(job: Job) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError):
        for line in (job.path / SESSIONS).read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def _cost(job: Job, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Time of all processes of the job, tokens, and the most memory; a killed process has left no time."""
    cost = {}
    if done := sessions_of(job):
        cost["Time"] = human_seconds(sum(each["end"] - each["begin"] for each in done))
    tokens = sum(row.get("tokens", 0) for row in rows)
    if tokens:
        cost["Tokens"] = f"{human_count(int(tokens))} trained"
    for name in ("memory/allocated_peak", "memory/resident_peak"):
        if most := max((row.get(name, 0) for row in rows), default=0):
            cost["Memory"] = f"{human_bytes(most)} at most"
            break
    return cost


def _commands(job: Job, result: Path | None) -> dict[str, str]:
    command = str(job.origin().get("command") or "")
    if result is None:
        again = {"Resume": command} if command else {}
        return again | {"Log": f"rondo job logs {job.label}", "Metrics": f"rondo job metrics {job.label}"}
    if result == job.adapter:
        base = shlex.quote(str(job.origin().get("model", "BASE")))
        adapter = shlex.quote(json.dumps({job.label: str(result)}))
        return {
            "Serve with its base": f"rondo serve {base} --server.adapters={adapter}",
            "Evaluate with its base": f"rondo evaluate {base} --adapter {job.label} --data HELD_OUT.jsonl",
        }
    return {
        "Serve": f"rondo serve {job.label}",
        "Chat": f"rondo chat {job.label}",
        "Evaluate": f"rondo evaluate {job.label} --data HELD_OUT.jsonl",
        "Export": f"rondo model export {job.label} ./{job.label}-hf",
    }


def markdown(found: ReportFacts) -> str:
    parts = [f"# {found.title}", _table({name: _cell(value) for name, value in found.facts.items()})]
    if charts := found.charts():
        lines = ["| metric | first | last | least | most |", "|---|---|---|---|---|"]
        for curves in charts.values():
            for metric, points in curves.items():
                values = [value for _, value in points]
                figures = (values[0], values[-1], min(values), max(values))
                lines.append(f"| {metric} | " + " | ".join(map(_figure, figures)) + " |")
        parts += ["## Metrics", "\n".join(lines), "Curves: [report.html](report.html)"]
    if found.samples:
        parts.append("## Samples before and after")
        parts += [_sample(*pair) for pair in found.samples]
    if found.commands:
        lines = [f"{command}    # {name}" for name, command in found.commands.items()]
        parts += ["## Next", _fenced("\n".join(lines), "sh")]
    settings = "\n".join(f"{name} = {json.dumps(value)}" for name, value in found.settings.items())
    parts += ["## Settings", _fenced(settings)]
    return "\n\n".join(parts) + "\n"


def html(found: ReportFacts) -> str:
    rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in found.facts.items())
    parts = [f"<h1>{escape(found.title)}</h1><table>{rows}</table>"]
    if charts := found.charts():
        figures = "".join(_chart(title, curves) for title, curves in charts.items())
        parts.append(f"<h2>Curves</h2><div class=charts>{figures}</div>")
    if found.samples:
        parts.append("<h2>Samples before and after</h2>" + "".join(_sample_html(*p) for p in found.samples))
    if found.commands:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td><code>{escape(command)}</code></td></tr>"
            for name, command in found.commands.items()
        )
        parts.append(f"<h2>Next</h2><table>{rows}</table>")
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(json.dumps(value))}</code></td></tr>"
        for name, value in found.settings.items()
    )
    parts.append(f"<h2>Settings</h2><details><summary>{len(found.settings)} settings</summary>")
    parts.append(f"<table>{rows}</table></details>")
    head = f'<meta charset="utf-8"><title>{escape(found.title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A line chart as SVG: the axes carry their smallest and largest values."""
    steps = [step for points in curves.values() for step, _ in points]
    values = [value for points in curves.values() for _, value in points]
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    wide, tall = WIDTH - MARGIN - 10, HEIGHT - 40

    def place(step: float, value: float) -> str:
        x = MARGIN + wide * ((step - left) / (right - left) if right > left else 0.5)
        y = 10 + tall * (1 - ((value - low) / (high - low) if high > low else 0.5))
        return f"{x:.1f},{y:.1f}"

    lines, legend = [], []
    for (metric, points), color in zip(curves.items(), COLORS, strict=False):
        path = " ".join(place(*point) for point in _thinned(points))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        legend.append(f'<span style="color:{color}">{escape(metric)}</span> {_figure(points[-1][1])}')
    bottom = 10 + tall
    axes = (
        f'<path d="M{MARGIN},10V{bottom}H{WIDTH - 10}" fill="none" stroke="#8c959f"/>'
        f'<text x="{MARGIN - 4}" y="18" text-anchor="end">{high + 0.0:.3g}</text>'
        f'<text x="{MARGIN - 4}" y="{bottom}" text-anchor="end">{low + 0.0:.3g}</text>'
        f'<text x="{MARGIN}" y="{bottom + 16}">{left:g}</text>'
        f'<text x="{WIDTH - 10}" y="{bottom + 16}" text-anchor="end">step {right:g}</text>'
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    caption = f"<b>{escape(title)}</b> · {' · '.join(legend)}"
    picture = f'<svg {size} role="img" aria-label="{escape(title)}">{axes}{"".join(lines)}</svg>'
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most `MOST_POINTS` points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[(len(points) - 1) * i // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]


def _sample(before: SampledAnswer, after: SampledAnswer) -> str:
    parts = [f"**Prompt** ({before.split})", _fenced(_cut(before.prompt))]
    for label, sample in _answers(before, after):
        parts += [f"**{label}**", _fenced(_cut(sample.answer))]
    if before.expected is not None:
        parts += ["**Expected**", _fenced(_cut(before.expected))]
    return "\n\n".join(parts)


def _sample_html(before: SampledAnswer, after: SampledAnswer) -> str:
    shown = [("Prompt", before.prompt), *((label, each.answer) for label, each in _answers(before, after))]
    if before.expected is not None:
        shown.append(("Expected", before.expected))
    return (
        "".join(f"<h4>{escape(label)}</h4><pre>{escape(_cut(text))}</pre>" for label, text in shown) + "<hr>"
    )


def _answers(before: SampledAnswer, after: SampledAnswer) -> list[tuple[str, SampledAnswer]]:
    both = [before] if after is before else [before, after]
    return [(f"Step {each.step}" + _reward(each), each) for each in both]


def _reward(sample: SampledAnswer) -> str:
    return "" if sample.reward is None else f", reward {_figure(sample.reward)}"


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def _figure(value: float) -> str:
    return f"{value + 0.0:.4g}"
