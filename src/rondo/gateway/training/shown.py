"""Jobs as OpenAI's API shows them: the job, its events and its checkpoints, from its row and its folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rondo.base.errors import StorageError
from rondo.base.storage.home import jobs_dir
from rondo.control.jobs.book import JobEvent, JobRow
from rondo.control.jobs.registry.rows import checkpoint_name
from rondo.control.jobs.states import JobState
from rondo.control.store.clock import MICROSECONDS
from rondo.jobs.job import Job
from rondo.jobs.metrics import last_rows

STATUS: Mapping[JobState, str] = {"starting": "validating_files", "pausing": "running"}
METRICS = {
    "loss": "train_loss",
    "accuracy": "train_preference_accuracy",
    "token_accuracy": "train_mean_token_accuracy",
    "held_out/loss": "valid_loss",
    "evaluate/loss": "valid_loss",
    "evaluate/token_accuracy": "valid_mean_token_accuracy",
    "held_out/accuracy": "valid_preference_accuracy",
    "evaluate/accuracy": "valid_preference_accuracy",
    "reward": "train_reward_mean",
    "held_out/reward": "valid_reward_mean",
}
"""OpenAI's names of our metrics. Accuracy is the share of pairs whose preferred answer is the more likely one."""
FULL = {"evaluate/loss": "full_valid_loss", "evaluate/token_accuracy": "full_valid_mean_token_accuracy"}
"""OpenAI's names of the same values: every evaluation is over the whole validation file."""

DPO_BETA = 0.1
"""Strength of the reference constraint by default, as in `rondo train preference`."""


def seconds(time: int | None) -> int | None:
    return None if time is None else time // MICROSECONDS


def folder_of(row: JobRow) -> Job | None:
    """The job's folder, once its process has created it."""
    return None if row.hash is None else Job(jobs_dir() / row.hash)


def fine_tuning_job(row: JobRow) -> dict[str, Any]:
    asked = row.spec.origin
    job = folder_of(row)
    method = asked["method"] if job is None else with_choices(row, asked["method"], job)
    return {
        "id": row.id,
        "object": "fine_tuning.job",
        "created_at": seconds(row.created),
        "finished_at": seconds(row.ended),
        "model": row.model,
        "fine_tuned_model": row.result if row.state == "succeeded" else None,
        "organization_id": "rondo",
        "status": STATUS.get(row.state, row.state),
        "training_file": asked["training_file"],
        "validation_file": asked["validation_file"],
        "hyperparameters": method.get("supervised", {}).get("hyperparameters", {}),
        "method": method,
        "seed": asked["seed"],
        "trained_tokens": trained_tokens(job) if row.state == "succeeded" else None,
        "estimated_finish": estimated_finish(row, job),
        "result_files": result_ids(row),
        "metadata": asked["metadata"],
        "integrations": asked["integrations"],
        "error": _error(row),
        "job_hash": row.hash,
    }


def with_choices(row: JobRow, method: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """The method of a job that has started, with the values for which `auto` stands."""
    kind = str(method["type"])
    told = method.get(kind) or {}
    found = _choices(row, kind, job)
    hyper = told.get("hyperparameters") or {}
    filled = {name: found.get(name, "auto") if value == "auto" else value for name, value in hyper.items()}
    return {**method, kind: {**told, "hyperparameters": filled}}


def _choices(row: JobRow, kind: str, job: Job) -> dict[str, float]:
    settings = row.spec.settings
    found = {"learning_rate_multiplier": 1, "n_epochs": settings.get("epochs", 1)}
    if kind == "reinforcement":
        return found | {
            "batch_size": settings["prompts_per_step"],
            "compute_multiplier": 1,
            "eval_samples": 1,
        }
    try:
        sizes = [each["examples"] for each in last_rows(job.path / "metrics.jsonl") if each.get("examples")]
    except StorageError:  # a damaged file of one job
        sizes = []
    batch = {"batch_size": round(sum(sizes) / len(sizes))} if sizes else {}
    return found | batch | ({"beta": DPO_BETA} if kind == "dpo" else {})


def _error(row: JobRow) -> dict[str, Any] | None:
    error = row.error
    if error is None:
        return None
    message, field = with_files(row, str(error["message"]))
    return {**error, "message": message, "param": field or error.get("param")}


def with_files(row: JobRow, text: str) -> tuple[str, str | None]:
    """A message that names the uploaded files and their lines in place of the job's inputs, and the field of the
    file that it names."""
    told, named = row.spec.origin, list[str]()

    def renamed(match: re.Match[str]) -> str:
        number, field = int(match["line"] or 0), fields[match["name"]]
        before = told.get("training_lines")
        if before is not None and number > before:
            number, field = number - before, "validation_file"
        named.append(field)
        return f"{field} {told[field]}" + (f", line {number}" if number else "")

    inputs = {"evaluate.data": "validation_file", "data": "training_file", "task": "training_file"}
    fields = {
        Path(str(row.spec.settings[setting])).name: field
        for setting, field in inputs.items()
        if setting in row.spec.inputs and told.get(field)
    }
    if not fields:
        return text, None
    names = "|".join(map(re.escape, fields))
    text = re.sub(rf"(?:/\S*/)?(?P<name>{names})(?:, line (?P<line>\d+))?", renamed, text)
    return text, named[0] if named else None


def result_ids(row: JobRow) -> list[str]:
    """Ids of the result files. They follow from the job, so that creating them can be repeated."""
    if row.state != "succeeded":
        return []
    return [f"file-{hashlib.sha256(f'{row.id} step metrics'.encode()).hexdigest()[:32]}"]


def trained_tokens(job: Job | None) -> int | None:
    if job is None:
        return None
    try:
        return _tokens(job, (job.path / "metrics.jsonl").stat().st_mtime_ns)
    except (OSError, StorageError):  # a damaged file of one job
        return None


@lru_cache(4096)
def _tokens(job: Job, changed: int) -> int:
    return int(sum(row.get("tokens", 0) for row in job.metrics()))


def estimated_finish(row: JobRow, job: Job | None) -> int | None:
    """From the mean time of the steps so far."""
    if row.state != "running" or job is None or row.started is None:
        return None
    try:
        status = job.status()
    except StorageError:
        return None
    step, steps, now = int(status.get("step", 0)), int(status.get("steps", 0)), float(status.get("time", 0))
    begun = row.started / MICROSECONDS
    if not 0 < step <= steps or now <= begun:
        return None
    return int(now + (now - begun) / step * (steps - step))


def event(job: JobRow, row: JobEvent) -> dict[str, Any]:
    return {
        "id": f"ftevent-{row.id}",
        "object": "fine_tuning.job.event",
        "created_at": seconds(row.time),
        "level": row.level,
        "message": with_files(job, row.message)[0],
        "type": "message",
        "data": None,
    }


def metrics_event(metrics: Mapping[str, Any], at: int) -> dict[str, Any]:
    """One step as an event of the type `metrics`."""
    data = openai_metrics(metrics)
    told = ", ".join(f"{name}={value:.4g}" for name, value in data.items() if name != "step")
    return {
        "id": f"ftevent-step-{data['step']}",
        "object": "fine_tuning.job.event",
        "created_at": at,
        "level": "info",
        "message": f"Step {data['step']}: {told}",
        "type": "metrics",
        "data": data,
    }


def with_metrics(events: Sequence[JobEvent], row: JobRow) -> list[dict[str, Any]]:
    """Events and metrics of the steps, the newest first."""
    job = folder_of(row)
    shown = [(each.time / MICROSECONDS, event(row, each)) for each in events]
    if job is not None:
        shown += [(at, metrics_event(each, int(at))) for each, at in timed(job)]
    return [each for _, each in sorted(shown, key=lambda pair: -pair[0])]


def timed(job: Job) -> list[tuple[dict[str, Any], float]]:
    """Metrics of the steps with the times at which they ended, the newest first: the file's time less the durations of
    later steps."""
    rows = job.metrics()
    try:
        at = (job.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return []
    found = []
    for row in reversed(rows):
        found.append((row, at))
        at -= float(row.get("seconds", 0.0))
    return found


def openai_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        names[name]: value for names in (METRICS, FULL) for name, value in metrics.items() if name in names
    }
    return {"step": int(metrics["step"]), **known}


def checkpoints(row: JobRow) -> list[dict[str, Any]]:
    """Saved checkpoints, the newest first."""
    job = folder_of(row)
    if job is None:
        return []
    by_step = {each["step"]: each for each in job.metrics()}
    return [
        {
            "id": f"ftckpt_{row.id.partition('-')[2]}_{step}",
            "object": "fine_tuning.job.checkpoint",
            "created_at": int(at),
            "fine_tuned_model_checkpoint": checkpoint_name(row.result or str(row.hash), step),
            "fine_tuning_job_id": row.id,
            "step_number": step,
            "metrics": openai_metrics(by_step.get(step, {"step": step})),
        }
        for step, at in job.saved_steps().items()
    ]
