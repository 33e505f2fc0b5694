"""`rondo job`: jobs of this machine, from their folders alone, and jobs of a gateway, over HTTP."""

from __future__ import annotations

import json
import sys
import time
from textwrap import wrap
from typing import Any

from rondo.base.storage.home import jobs_dir
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.help import columns
from rondo.cli.options.verbs import run_verb
from rondo.cli.platform.remote import add_address
from rondo.cli.subcommands import job_control, job_metrics, job_remote, job_submit
from rondo.cli.subcommands.job_control import JOB, steps_of
from rondo.cli.view.table import aligned, fitted
from rondo.jobs.folders import name_job
from rondo.jobs.job import Job
from rondo.jobs.report import write_report
from rondo.jobs.summary import JobSummary, shown_score, summaries, summary_of
from rondo.rl.record.events import EventLog

USAGE = """usage: rondo job VERB [options]

  list     the jobs of this machine, the last one first; --remote: of the gateway
  show     state, settings, checkpoints and result of a job
  logs     its log; -f follows it

jobs of this machine, started by `rondo train`, `rondo rl` and `rondo demo`:
  metrics  its curves, or some figures step by step: rondo job metrics JOB loss mfu
  report   write its report (Markdown and HTML) and print the file
  stop     finish the step, save and end; --now kills the process
  rename   give it another name
  rm       remove its folder with checkpoints and result

jobs of a gateway, submitted by `rondo train ... --submit` and the like:
  submit   run a program of yours: rondo job submit -- python my.py
  cancel   cancel it at once
  pause    save a checkpoint and end its process until it is resumed
  resume   continue it after a pause
  delete   delete it after its end; its model stays
  exec     run a program here with the limits of a submitted one

JOB is a job's name, or the first 6 or more characters of its hash; a gateway's job
has an id such as job-3f... --url and --key name the gateway.

  rondo job VERB --help   the options of a verb"""


def run(argv: list[str]) -> int:
    return run_verb("rondo job", VERBS, USAGE, argv)


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo job list", "The jobs of this machine, the last one first, in RONDO_HOME/jobs.")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument(
        "--limit", type=int, default=50, metavar="N", help="with --remote: number of jobs (50)"
    )
    job_remote.add_remote(parser)
    arguments = parser.parse_args(argv)
    if arguments.remote or arguments.url:
        return job_remote.show_list(arguments)
    found = summaries()
    if arguments.json:
        print(json.dumps([row.json if isinstance(row, JobSummary) else row for row in found]))
    elif not found:
        print(
            f"There are no jobs in {jobs_dir()} yet. `rondo train`, `rondo rl` and `rondo demo` start them."
        )
    else:
        print(_table(found))
    return 0


def _show(argv: list[str]) -> int:
    parser = VerbParser("rondo job show", "State, settings, checkpoints and result of a job.")
    parser.add_argument("job", metavar="JOB", help=JOB)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_address(parser)
    arguments = parser.parse_args(argv)
    if job_remote.is_remote(arguments.job, arguments):
        return job_remote.show_one(arguments)
    job = Job.find(arguments.job)
    holder = job.holder()
    facts = summary_of(job).json | {
        "path": str(job.path),
        "data": job.origin().get("data"),
        "command": job.origin().get("command"),
        "pid": holder.pid if holder else None,
        "reason": job.status().get("reason"),
        "result": str(job.result) if job.done else None,
        "alarms": [
            {"alarm": e["alarm"], "since": e["since"], "saw": e["saw"]} for e in EventLog(job.path).standing()
        ],
        "checkpoints": list(job.saved_steps()),
        "metrics": job.last_metrics(),
        "config": job.spec().get("config", {}),
    }
    print(json.dumps(facts) if arguments.json else _sheet(facts))
    return 0


def _report(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo job report", "Write a job's report, report.md and report.html, and print the file."
    )
    parser.add_argument("job", metavar="JOB", help=JOB)
    parser.add_argument(
        "--markdown", action="store_true", help="print the Markdown file instead of the HTML file"
    )
    arguments = parser.parse_args(argv)
    file = write_report(Job.find(arguments.job))
    print(file.with_suffix(".md") if arguments.markdown else file)
    return 0


def _rename(argv: list[str]) -> int:
    parser = VerbParser("rondo job rename", "Give a job another name. A running job is not affected.")
    parser.add_argument("job", metavar="JOB", help=JOB)
    parser.add_argument("name", metavar="NAME", help="the new name, unique among the jobs")
    arguments = parser.parse_args(argv)
    job = Job.find(arguments.job)
    name_job(job.path, arguments.name)
    print(f"job {job.short} is named {arguments.name}")
    return 0


def _table(found: list[JobSummary | dict[str, Any]]) -> str:
    rows = [["job", "kind", "state", "step", "score", "started"]]
    broken = {}
    for row in found:
        if isinstance(row, JobSummary):
            step = steps_of(row.step, row.steps)
            rows.append(
                [row.label, row.kind or "-", row.state, step, shown_score(row.score), _clock(row.started)]
            )
        else:
            label = row["name"] or Job(jobs_dir() / row["job"]).short
            broken[len(rows)] = f"{label}  broken: {row['error']}"
            rows.append([label, "", "", "", "", ""])
    lines = aligned(fitted(rows, (0,)))
    return "\n".join(broken.get(number, line) for number, line in enumerate(lines))


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"


def _sheet(facts: dict[str, Any]) -> str:
    last = "  ".join(f"{name} {value:.4g}" for name, value in facts["metrics"].items() if name != "step")
    alarms = "; ".join(f"{a['alarm']} since step {a['since']}: {a['saw']}" for a in facts["alarms"])
    process = f" (process {facts['pid']})" if facts["pid"] else ""
    rows = {
        **({"name": facts["name"]} if facts["name"] else {}),
        "hash": facts["job"],
        "folder": facts["path"],
        "kind": facts["kind"] or "-",
        "state": facts["state"] + process + (f": {facts['reason']}" if facts["reason"] else ""),
        "step": steps_of(facts["step"], facts["steps"]),
        "score": shown_score(facts["score"]),
        "started": _clock(facts["started"]),
        "model": facts["model"] or "-",
        "data": facts["data"] or "-",
        "checkpoints": ", ".join(map(str, facts["checkpoints"])) or "none",
        **({"alarms": alarms} if alarms else {}),
        "last metrics": last or "none",
        "result": facts["result"] or "none yet",
        **({"command": facts["command"]} if facts["command"] else {}),
        "settings": "  ".join(f"{name}={json.dumps(value)}" for name, value in facts["config"].items()),
    }
    return "\n".join(line for label, value in rows.items() for line in _row(label, value))


def _row(label: str, value: str) -> list[str]:
    """Lines of a row: wrapped on a terminal, one line in a pipe."""
    width = columns() - LABEL if sys.stdout.isatty() else 0
    lines = wrap(value, width, break_long_words=False, break_on_hyphens=False) if width else [value]
    return [f"{name:<{LABEL}}{line}" for name, line in zip([label, *[""] * len(lines)], lines)]


LABEL = 14
VERBS = {
    "list": _list,
    "show": _show,
    "logs": job_control.logs,
    "metrics": job_metrics.run,
    "report": _report,
    "stop": job_control.stop,
    "rename": _rename,
    "rm": job_control.rm,
    "submit": job_submit.submit,
    "cancel": job_remote.cancel,
    "pause": job_remote.pause,
    "resume": job_remote.resume,
    "delete": job_remote.delete,
    "exec": job_submit.execute,
}
