"""Plots of RL jobs: rewards by part, mismatch of sampler and learner, seconds by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest, MissingExtra
from rondo.base.storage.files import storage_error
from rondo.jobs.job import Job
from rondo.rl.record.events import EventLog

DPI = 120
SMALLEST = 1e-9
"""Threshold below which the symlog axis is linear."""
LETTER, LINE = 0.022, 0.06
"""Width of a letter and height of a line of small text, as shares of one of the four axes."""
Rows = Sequence[Mapping[str, float]]


def need(file: Path) -> None:
    """Check matplotlib and the file type before any data is read."""
    try:
        import matplotlib.figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    kinds = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if file.suffix[1:].lower() not in kinds:
        raise ConfigError(f"--out {file.name}: a picture ends in .{', .'.join(sorted(kinds))}.", param="out")


def save(jobs: Sequence[Job], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    rows = {job.name: _rows(job) for job in jobs}
    if len(rows) == 1:
        [job] = jobs[:1]
        _one(figure, rows[job.name], job)
    else:
        _several(figure, {_label(job, jobs): rows[job.name] for job in jobs})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=DPI)
    except OSError as error:
        raise storage_error(file, error) from error


def _rows(job: Job) -> Rows:
    rows = [row for row in job.metrics() if row["step"] > 0]
    if not any("reward" in row for row in rows):
        raise InvalidRequest(f"job {job.short} has no rewards to draw: is it one of `rondo rl`?", param="job")
    return rows


def _one(figure: Any, rows: Rows, job: Job) -> None:
    (reward, mismatch), (phases, answers) = figure.subplots(2, 2)
    _line(reward, rows, "reward", label="reward", color="black", linewidth=2)
    for name in _named(rows, "reward/"):
        _line(reward, rows, name, label=name.removeprefix("reward/"))
    reward.set(title="reward by part")
    _mismatch(mismatch, rows)
    _phases(phases, rows)
    _answers(answers, rows)
    _alarms(reward, [event for event in EventLog(job.path).all() if event["kind"] == "alarm"])
    for axes in (reward, mismatch, phases, answers):
        _finish(axes)
    figure.suptitle(f"job {job.short}")


def _alarms(axes: Any, events: Sequence[Mapping[str, Any]]) -> None:
    """Vertical lines at the first step of each alarm, with their names; overlapping names are stacked."""
    begun: dict[float, list[str]] = {}
    for event in events:
        names = begun.setdefault(event["since"], [])
        if event["alarm"] not in names:
            names.append(event["alarm"])
    first, last = axes.get_xlim()
    labels = [(step, name) for step, names in sorted(begun.items()) for name in names]
    places = [(step - first) / (last - first) for step, _ in labels]
    spans = [
        (place, place + len(name) * LETTER) if place < 0.75 else (place - len(name) * LETTER, place)
        for place, (_, name) in zip(places, labels, strict=True)
    ]
    for step in begun:
        axes.axvline(step, color="red", linestyle=":", linewidth=1)
    for (step, name), (left, _), place, lane in zip(labels, spans, places, lanes(spans), strict=True):
        axes.annotate(
            name,
            (step, 0.02 + LINE * lane),
            xycoords=("data", "axes fraction"),
            color="red",
            fontsize="small",
            horizontalalignment="left" if left == place else "right",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )
    axes.set_xlim(first, last)


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """For each span the lowest lane without overlap with an earlier span."""
    taken: list[list[tuple[float, float]]] = []
    found = []
    for left, right in spans:
        free = (i for i, others in enumerate(taken) if all(right <= a or b <= left for a, b in others))
        lane = next(free, len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append((left, right))
        found.append(lane)
    return found


def _several(figure: Any, jobs: Mapping[str, Rows]) -> None:
    grid = figure.subplots(2, 2)
    drawn = {
        "reward": "reward",
        "reward/correct": "solved (reward/correct)",
        "sampler_kl": "mismatch: KL, sampler to learner",
        "answer_tokens": "tokens an answer",
    }
    for axes, (name, title) in zip(grid.flat, drawn.items(), strict=True):
        for number, (label, rows) in enumerate(jobs.items()):
            _line(axes, rows, name, label=label, color=f"C{number}")
        axes.set(title=title)
        _finish(axes)
    _logarithmic(grid[1][0])


def _mismatch(axes: Any, rows: Rows) -> None:
    labels = {"logprob_diff": "mean difference", "logprob_diff_max": "largest difference", "sampler_kl": "KL"}
    for name, label in labels.items():
        _line(axes, rows, name, label=label)
    axes.set(title="mismatch of sampler and learner, nats a token")
    _logarithmic(axes)


def _logarithmic(axes: Any) -> None:
    """Logarithmic axis that includes 0, the mismatch of a bitwise equal sampler and learner."""
    axes.set_yscale("symlog", linthresh=SMALLEST)
    axes.set_ylim(bottom=0)


def _phases(axes: Any, rows: Rows) -> None:
    """Stacked seconds by phase; a phase missing in a step has 0 seconds."""
    names = _named(rows, "seconds/")
    steps = [row["step"] for row in rows]
    values = [[row.get(name, 0.0) for row in rows] for name in names]
    if names:
        axes.stackplot(steps, values, labels=[name.removeprefix("seconds/") for name in names], alpha=0.8)
    axes.set(title="seconds a step, by phase", ylim=(0, None))


def _answers(axes: Any, rows: Rows) -> None:
    for name, label in (
        ("answer_tokens", "mean"),
        ("answer_tokens_p99", "99 %"),
        ("answer_tokens_max", "longest"),
    ):
        _line(axes, rows, name, label=label)
    axes.set(title="tokens an answer, and entropy", ylim=(0, None))
    name = "entropy" if any("entropy" in row for row in rows) else "sampled_entropy"
    steps, values = _values(rows, name)
    if steps:
        other = axes.twinx()
        other.plot(steps, values, color="grey", linestyle="--")
        other.set(ylabel="entropy, nats a token (broken line)", ylim=(0, None))


def _finish(axes: Any) -> None:
    axes.set(xlabel="step")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _line(axes: Any, rows: Rows, name: str, **style: Any) -> None:
    steps, values = _values(rows, name)
    if steps:
        axes.plot(steps, values, **style)


def _values(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    own = [row for row in rows if name in row]
    return [row["step"] for row in own], [row[name] for row in own]


def _named(rows: Rows, prefix: str) -> list[str]:
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name.startswith(prefix)]


def _label(job: Job, jobs: Sequence[Job]) -> str:
    """Legend entry of a job: its algorithm, followed by the job's hash if the algorithm is not unique."""
    names = [str(each.spec().get("config", {}).get("algorithm", each.short)) for each in jobs]
    own = names[list(jobs).index(job)]
    return own if names.count(own) == 1 else f"{own} {job.short[:6]}"
