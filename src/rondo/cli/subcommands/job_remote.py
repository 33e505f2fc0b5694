"""`rondo job list|show|logs|cancel|pause|resume|delete` for jobs of a gateway."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rondo.cli.options.arguments import VerbParser
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.client.http import Client

REMOTE = re.compile(r"(ft)?job-[0-9a-f]+")
"""Ids of a gateway's jobs; all other names are jobs of this machine."""
JOB = "id of a gateway's job, such as job-3f..., or with --url its hash"


def is_remote(job: str, given: argparse.Namespace) -> bool:
    return given.url is not None or REMOTE.fullmatch(job) is not None


def add_remote(parser: VerbParser) -> None:
    parser.add_argument("--remote", action="store_true", help="jobs of the gateway, not of this machine")
    add_address(parser)


def show_list(given: argparse.Namespace) -> int:
    with gateway_client(given.url, given.key) as client:
        jobs = [job.facts for job in client.jobs(given.limit)]
    if given.json:
        print(json.dumps(jobs))
        return 0
    rows = [("JOB", "KIND", "MODEL", "STATE", "STEP", "SUBMITTED")]
    rows += [
        (
            each["id"],
            each["kind"],
            each["model"] or "-",
            each["state"],
            _step(each),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["created"])),
        )
        for each in jobs
    ]
    print(
        "\n".join(aligned(rows)) if jobs else "There are no jobs yet: `rondo train ... --submit` submits one."
    )
    return 0


def show_one(given: argparse.Namespace) -> int:
    with gateway_client(given.url, given.key) as client:
        facts = client.job_facts(given.job)
        rows = client.job(given.job).metrics()
    if given.json:
        print(json.dumps({**facts, "last_metrics": rows[-1] if rows else {}}))
        return 0
    error = facts["error"] or {}
    told: dict[str, Any] = {
        "job": facts["id"],
        "hash": facts["hash"] or "none yet",
        "name": facts["name"] or "-",
        "kind": facts["kind"],
        "model": facts["model"] or "-",
        "state": facts["state"] + (f": {error['message']}" if error.get("message") else ""),
        "step": _step(facts),
        "attempt": facts["attempt"],
        "launcher": facts["launcher"],
        "last metrics": _figures(rows[-1]) if rows else "none",
        **({"result": _figures(facts["result"])} if facts["result"] else {}),
        "settings": "  ".join(f"{name}={json.dumps(value)}" for name, value in facts["settings"].items()),
    }
    print("\n".join(f"{name:<14}{value}" for name, value in told.items()))
    return 0


def logs(given: argparse.Namespace) -> int:
    with gateway_client(given.url, given.key) as client:
        for piece in client.logs(given.job, follow=given.follow):
            print(piece, end="", flush=True)
    return 0


def cancel(argv: list[str]) -> int:
    description = "Cancel jobs of the gateway at once; their processes are ended."
    return _change_each("cancel", description, argv, lambda client, job: client.cancel_job(job)["state"])


def pause(argv: list[str]) -> int:
    description = "Save checkpoints of the gateway's jobs, and end their processes until resumed."
    return _change_each("pause", description, argv, lambda client, job: client.pause_job(job)["state"])


def resume(argv: list[str]) -> int:
    description = "Continue paused jobs of the gateway from their last checkpoints."
    return _change_each("resume", description, argv, lambda client, job: client.resume_job(job)["state"])


def delete(argv: list[str]) -> int:
    def deleted(client: Client, job: str) -> str:
        client.delete_job(job)
        return "deleted"

    description = "Delete jobs of the gateway that have ended; their models stay."
    return _change_each("delete", description, argv, deleted)


def _change_each(verb: str, description: str, argv: list[str], change: Callable[[Client, str], str]) -> int:
    """Changes the jobs on the command line, and prints each one's state that `change` returns."""
    parser = VerbParser(f"rondo job {verb}", description)
    parser.add_argument("jobs", metavar="JOB", nargs="+", help=JOB)
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        for job in given.jobs:
            print(f"job {job} is {change(client, job)}")
    return 0


def _step(facts: dict[str, Any]) -> str:
    if facts["step"] is None:
        return "-"
    return f"{facts['step']}/{facts['steps']}" if facts["steps"] else str(facts["step"])


def _figures(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, int | float))
