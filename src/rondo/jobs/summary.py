"""The row of a job in lists: name, state, progress and score."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import RondoError
from rondo.jobs.folders import name_of_job
from rondo.jobs.job import Job

SCORES = {
    "held_out/reward": "reward",
    "evaluate/reward": "reward",
    "evaluate/loss": "loss",
    "evaluate/accuracy": "accuracy",
}
"""Metrics on held-out data by which a job is listed, and their short names; the first one that a job has counts."""
LINEAGE = "rondo.json"
"""File in the folder of an exported model with its job, parent and score."""
TAIL_BYTES = 1 << 20
"""Bytes from the end of the metrics that are searched for a score, so that lists are fast."""


@dataclass(frozen=True)
class JobSummary:
    job: str
    name: str | None
    kind: str | None
    state: str
    step: int
    steps: int | None
    started: float
    model: str | None
    score: dict[str, float]
    """Held-out metric of the last evaluation, as {name: value}; empty before the first one."""

    @property
    def label(self) -> str:
        return self.name or Job(Path(self.job)).short

    @property
    def json(self) -> dict[str, Any]:
        return asdict(self)


def summary_of(job: Job) -> JobSummary:
    status, spec, origin = job.status(), job.spec(), job.origin()
    return JobSummary(
        job=job.name,
        name=str(origin.get("name") or "") or None,
        kind=spec.get("kind"),
        state=present_state(job, status.get("state")),
        step=int(status.get("step", 0)),
        steps=spec.get("config", {}).get("steps"),
        started=job.started,
        model=origin.get("model"),
        score=score_of(job),
    )


def summaries() -> list[JobSummary | dict[str, Any]]:
    """Jobs of this machine, the last started first. A job with unreadable files is a row with its hash and the error,
    and does not hide the others.
    """
    found: list[JobSummary | dict[str, Any]] = []
    for job in Job.all():
        try:
            found.append(summary_of(job))
        except RondoError as error:
            found.append({"job": job.name, "name": name_of_job(job.path) or None, "error": error.message})
    return found


def lineage_of(job: Job, **facts: float) -> dict[str, Any]:
    """Origin of the model that the job exports, for `LINEAGE` in the model's folder. `facts` are final metrics."""
    return {
        "job": job.name,
        "kind": job.spec().get("kind"),
        "parent": job.origin().get("model"),
        "score": _score(facts) or _last_score(job.path),
    }


def present_state(job: Job, written: str | None) -> str:
    """State of a job. A killed job still has the state "running" in its files: the same command resumes it."""
    if written is None:
        return "queued"
    return "paused" if written in ("starting", "running") and not job.held() else written


def score_of(job: Job) -> dict[str, float]:
    """The held-out metric of the last evaluation: a finished RL job has it in its status, others in their metrics."""
    return _score(job.status()) or _last_score(job.path)


def _last_score(folder: Path) -> dict[str, float]:
    for line in reversed(_tail(folder / "metrics.jsonl").splitlines()):
        if b'"evaluate/' not in line and b'"held_out/' not in line:
            continue
        try:
            row = json.loads(line)
        except ValueError:  # the line is cut off
            continue
        if score := _score(row):
            return score
    return {}


def _score(row: Mapping[str, Any]) -> dict[str, float]:
    for metric, name in SCORES.items():
        if isinstance(row.get(metric), int | float):
            return {name: float(row[metric])}
    return {}


def shown_score(score: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in score.items()) or "-"


def _tail(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - TAIL_BYTES))
            return opened.read()
    except OSError:
        return b""
