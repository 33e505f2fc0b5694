"""`rondo job list|show`: the training jobs of this machine, from their folders alone."""

from __future__ import annotations

import json
import time
from typing import Any

from rondo.base.errors import RondoError, StorageError
from rondo.base.storage.home import jobs_dir
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.subcommands import job_metrics
from rondo.jobs.job import Job
from rondo.rl.record.events import EventLog
from rondo.train.checkpoints.checkpoint import existing

USAGE = """usage: rondo job VERB [options]

  list     the jobs of this machine, the last one first
  show     all that is known about one: rondo job show HASH
  metrics  its curves: rondo job metrics HASH; or some figures step by step: rondo job metrics HASH loss mfu

A job is named by the first 6 or more characters of its hash. Jobs are started by `rondo train` and `rondo rl`.

  rondo job VERB --help   what a verb takes"""


def run(argv: list[str]) -> int:
    return run_verb("rondo job", VERBS, USAGE, argv)


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo job list", "The jobs of this machine, the last one first, in RONDO_HOME/jobs.")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    arguments = parser.parse_args(argv)
    rows = [_row(job) for job in Job.all()]
    if arguments.json:
        print(json.dumps(rows))
    elif not rows:
        print(f"There are no jobs in {jobs_dir()} yet. `rondo train` and `rondo rl` start them.")
    else:
        print(_table([_shown(row) for row in rows]))
    return 0


def _show(argv: list[str]) -> int:
    parser = VerbParser("rondo job show", "What a job is, how far it came and what it left.")
    parser.add_argument("job", metavar="HASH", help="the first 6 or more characters of its hash")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    job = Job.find(arguments.job)
    facts = _row(job)
    if "error" in facts:
        raise StorageError(str(facts["error"]))
    facts |= {
        "path": str(job.path),
        "data": job.origin().get("data"),
        "reason": job.status().get("reason"),
        "result": str(job.result) if job.done else None,
        "alarms": [
            {"alarm": e["alarm"], "since": e["since"], "saw": e["saw"]} for e in EventLog(job.path).standing()
        ],
        "checkpoints": [checkpoint.step for checkpoint in existing(job.checkpoints)],
        "metrics": job.last_metrics(),
        "config": job.spec().get("config", {}),
    }
    print(json.dumps(facts) if arguments.json else _sheet(facts))
    return 0


def _row(job: Job) -> dict[str, Any]:
    """A job with unreadable files is a row with the error, and does not hide the others."""
    try:
        status = job.status()
        return {
            "job": job.name,
            "kind": job.spec().get("kind"),
            "state": _state(job, status.get("state")),
            "step": status.get("step", 0),
            "steps": job.spec().get("config", {}).get("steps"),
            "started": job.started,
            "model": job.origin().get("model"),
        }
    except RondoError as error:
        return {"job": job.name, "error": error.message}


def _state(job: Job, written: str | None) -> str:
    """State of a job. A killed job still has the state "running" in its files: the same command resumes it."""
    if written is None:
        return "queued"
    return "paused" if written in ("starting", "running") and not job.held() else written


def _shown(row: dict[str, Any]) -> list[str]:
    short = Job(jobs_dir() / row["job"]).short
    if "error" in row:
        return [short, f"broken: {row['error']}"]
    return [short, row["kind"] or "-", row["state"], _steps(row), _clock(row["started"]), row["model"] or "-"]


def _steps(row: dict[str, Any]) -> str:
    return f"{row['step']} of {row['steps']}" if row["steps"] else str(row["step"])


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"


def _table(rows: list[list[str]]) -> str:
    whole = [["job", "kind", "state", "step", "started", "model"], *rows]
    widths = [max(len(row[i]) for row in whole if len(row) == 6) for i in range(5)]
    lines = []
    for row in whole:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)] + row[5:]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _sheet(facts: dict[str, Any]) -> str:
    last = "  ".join(f"{name} {value:.4g}" for name, value in facts["metrics"].items() if name != "step")
    alarms = "; ".join(f"{a['alarm']} since step {a['since']}: {a['saw']}" for a in facts["alarms"])
    rows = {
        "job": facts["job"],
        "folder": facts["path"],
        "kind": facts["kind"] or "-",
        "state": facts["state"] + (f": {facts['reason']}" if facts["reason"] else ""),
        "step": _steps(facts),
        "started": _clock(facts["started"]),
        "model": facts["model"] or "-",
        "data": facts["data"] or "-",
        "checkpoints": ", ".join(map(str, facts["checkpoints"])) or "none",
        **({"alarms": alarms} if alarms else {}),
        "last metrics": last or "none",
        "result": facts["result"] or "none yet",
        "settings": "  ".join(f"{name}={json.dumps(value)}" for name, value in facts["config"].items()),
    }
    return "\n".join(f"{label:<13} {value}" for label, value in rows.items())


VERBS = {"list": _list, "show": _show, "metrics": job_metrics.run}
