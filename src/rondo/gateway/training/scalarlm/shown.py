"""Jobs in ScalarLM's shape."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rondo.base.errors import NotFound, StorageError
from rondo.base.storage.home import jobs_dir
from rondo.control.jobs.book import JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.request import request_of
from rondo.control.jobs.states import JobState
from rondo.control.store.clock import MICROSECONDS
from rondo.gateway.training.scalarlm.archive import DATA
from rondo.gateway.training.shown import folder_of
from rondo.jobs.metrics import last_rows
from rondo.jobs.script import working_folder

STATUS: Mapping[JobState, str] = {
    "queued": "QUEUED",
    "starting": "QUEUED",
    "running": "TRAINING",
    "pausing": "TRAINING",
    "paused": "PAUSED",
    "succeeded": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}
SLURM: Mapping[JobState, str] = {
    "queued": "PENDING",
    "starting": "CONFIGURING",
    "running": "RUNNING",
    "pausing": "COMPLETING",
}
HISTORY = 1024
"""Most steps in a history by default; they are thinned evenly."""
LARGEST_STATUS = 4 << 20
"""Bytes of the status file of a program."""
SMOOTHING = 0.9
LISTED = 100
"""Steps at the end of a program's history from which a list takes loss and time."""
LARGEST_FIELD = 4 << 10
SCANNED = 256 << 20
"""Bytes that a search in a data set reads."""
LONGEST_LINE = 64 << 20


def name_of_model(row: JobRow) -> str:
    return row.result or row.hash or row.id


def status_of(row: JobRow, history: bool = True) -> dict[str, Any]:
    status: dict[str, Any] = {
        "status": STATUS[row.state],
        "job_id": row.id,
        "job_hash": row.hash,
        "model_name": name_of_model(row),
        "job_directory": str(jobs_dir() / name_of_model(row)),
        "start_time": (row.started or row.created) / MICROSECONDS,
        "max_steps": steps_of(row),
        "attempt": row.attempt,
        "error": None if row.error is None else row.error["message"],
        "history": history_of(row) if history else [],
    }
    return status


def steps_of(row: JobRow) -> int:
    job = folder_of(row)
    with suppress(StorageError):
        if job is not None and (steps := job.status().get("steps")):
            return int(steps)
    reported = AttemptFolder.of(row.id, row.attempt).report().get("steps")
    return int(reported or row.spec.origin.get("max_steps") or 0)


def history_of(row: JobRow) -> list[dict[str, Any]]:
    """Step, loss and seconds of training at the end of each step."""
    found, job, seconds = list[dict[str, Any]](), folder_of(row), 0.0
    if row.kind == "script":
        found = _told_history(row)
    elif job is not None:
        with suppress(StorageError):
            for each in job.metrics():
                seconds += float(each.get("seconds", 0.0))
                if _is_finite(each.get("loss")):
                    epoch = each.get("epoch", 0)
                    found.append(
                        {"step": each["step"], "loss": each["loss"], "epoch": epoch, "time": seconds}
                    )
    most = (row.spec.origin.get("train_args") or {}).get("training_history_length", HISTORY)
    if len(found) <= most:
        return found
    last = len(found) - 1
    return [found[round(place * last / max(most - 1, 1))] for place in range(most)]


def _told_history(row: JobRow) -> list[dict[str, Any]]:
    """The history in the status file that a program of ScalarLM's writes."""
    file = working_folder(AttemptFolder.of(row.id, row.attempt).report_file) / "status.json"
    with suppress(OSError, ValueError, RecursionError):
        if file.stat().st_size <= LARGEST_STATUS:
            history = json.loads(file.read_text())["history"]
            return [each for each in history if isinstance(each, dict) and _is_finite(each.get("loss"))]
    return []


def response_of(row: JobRow, deployed: bool) -> dict[str, Any]:
    config = dict(row.spec.origin.get("train_args") or {})
    config |= {
        "job_directory": str(jobs_dir() / name_of_model(row)),
        "llm_name": row.model or config.get("llm_name"),
    }
    return {"job_status": status_of(row), "job_config": config, "deployed": deployed}


def listed(row: JobRow, deployed: bool) -> dict[str, Any]:
    """A row of the list. Loss and time follow from the last steps, so that a list reads no whole file."""
    rows = _last_steps(row)
    loss = rows[0]["loss"] if rows else 0.0
    for each in rows[1:]:
        loss = SMOOTHING * loss + (1 - SMOOTHING) * each["loss"]
    step = int(rows[-1]["step"]) if rows else 0
    seconds = sum(float(each.get("seconds", 0.0)) for each in rows)
    return {
        "name": name_of_model(row),
        "deployed": deployed,
        "status": STATUS[row.state],
        "start_time": (row.started or row.created) / MICROSECONDS,
        "step": step,
        "max_steps": steps_of(row),
        "train_time": seconds / len(rows) * step if rows else 0,
        "loss": loss,
    }


def _last_steps(row: JobRow) -> list[dict[str, Any]]:
    if row.kind == "script":
        return [each for each in _told_history(row)[-LISTED:] if isinstance(each.get("step"), int)]
    job = folder_of(row)
    with suppress(StorageError):
        rows = [] if job is None else last_rows(job.path / "metrics.jsonl")
        return [each for each in rows if _is_finite(each.get("loss"))]
    return []


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def checkpoints_of(row: JobRow) -> list[dict[str, Any]]:
    """Saved checkpoints, the newest first."""
    job = folder_of(row)
    found = {} if job is None else job.saved_steps()
    return [
        {"name": f"step_{step}", "step": step, "mtime": time, "model": f"{row.hash}@{step}"}
        for step, time in found.items()
    ]


def log_lines(row: JobRow, begin: int) -> Iterator[bytes]:
    """Lines of the outputs of all attempts in order, as JSON lines with their numbers."""
    number = 0
    for attempt in range(1, row.attempt + 1):
        with suppress(OSError), AttemptFolder.of(row.id, attempt).output.open("rb") as file:
            for line in file:
                if number >= begin:
                    text = line.decode(errors="replace").rstrip()
                    yield json.dumps({"line": text, "line_number": number}).encode() + b"\n"
                number += 1


def data_file(row: JobRow) -> Path:
    settings = row.spec.settings
    files = {name: path for name, path in settings.get("files", {}).items() if name in DATA}
    path = Path(str(settings.get("data") or next(iter(files.values()), "")))
    if not ({"data"} & row.spec.inputs.keys() or files) or not path.is_file():
        raise NotFound(f"The data of job {row.id} are not on this machine.", param="job", code="no_data")
    return path


def examples(path: Path, offset: int, limit: int, text: str | None) -> dict[str, Any]:
    """A part of a data set; with `text`, of the examples that contain it."""
    wanted = None if not text else text.lower().encode()
    total = matched = read = 0
    shown: list[dict[str, Any]] = []
    truncated = False
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(LONGEST_LINE), b""):
            read += len(line)
            if wanted is None or wanted in line.lower():
                if offset <= matched < offset + limit:
                    shown.append(_example(total, line))
                matched += 1
            total += 1
            if wanted is not None and read >= SCANNED:
                truncated = True
                break
    return {
        "total": total,
        "offset": offset,
        "limit": limit,
        "matched": matched,
        "truncated": truncated,
        "examples": shown,
    }


def _example(index: int, line: bytes) -> dict[str, Any]:
    raw = line.decode(errors="replace").rstrip("\n")
    found: dict[str, Any] = {"index": index, "raw": raw[:LARGEST_FIELD]}
    cut = ["raw"] if len(raw) > LARGEST_FIELD else []
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        names = (("prompt", "input"), ("completion", "output")) if isinstance(record, dict) else ()
        for own, name in names:
            if isinstance(record.get(own), str):
                found[name] = record[own][:LARGEST_FIELD]
                cut += [name] if len(record[own]) > LARGEST_FIELD else []
    return found | ({"truncated_fields": cut} if cut else {})


def squeue_text(rows: Sequence[JobRow], time_limit: int | None) -> str:
    """Jobs that have not ended, in the columns of Slurm's squeue. `time_limit` is the default of an attempt."""
    head = ("JOBID", "PARTITION", "NAME", "USER", "STATE", "TIME", "TIME_LIMI", "NODES", "NODELIST(REASON)")
    lines = [head]
    for row in rows:
        if row.state not in SLURM:
            continue
        launcher, _, host = row.launcher.partition("@")
        age = 0 if row.started is None else max(0, int(time.time() - row.started / MICROSECONDS))
        where = (host or launcher) if row.launched else "(Resources)"
        name, state = name_of_model(row)[:12], SLURM[row.state]
        request = request_of(row.spec, time_limit)
        limit = "UNLIMITED" if request.time_limit is None else _clock(request.time_limit)
        own = (row.id, launcher[:9], name, row.owner[:8], state, _clock(age), limit)
        lines.append((*own, str(request.nodes), where))
    widths = (max(18, *(len(line[0]) for line in lines)), 9, 12, 8, 12, 10, 9, 6)
    return "".join(
        " ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=False)) + f" {line[-1]}\n"
        for line in lines
    )


def _clock(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    return f"{hours}:{minutes % 60:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
