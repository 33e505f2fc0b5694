"""`rondo job logs|stop|rm`: log, end and removal of a job, which another process may work on."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.platform.remote import add_address
from rondo.cli.subcommands import job_remote
from rondo.cli.view.confirm import confirm
from rondo.jobs import control
from rondo.jobs.job import Job
from rondo.jobs.session import LOGS
from rondo.jobs.summary import summary_of

JOB = "a job's name, or the first 6 or more characters of its hash"
LOOK_SECONDS = 0.2
STOP_SECONDS = 86400.0
"""Maximum wait for the end of a step."""


def logs(argv: list[str]) -> int:
    parser = VerbParser("rondo job logs", "The log of a job: its steps, samples, warnings and its end.")
    parser.add_argument("job", metavar="JOB", help=JOB)
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the job ends")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="print the last N lines only")
    parser.add_argument(
        "--rank", type=int, default=0, help="the log of another rank; ranks log warnings only (0)"
    )
    add_address(parser)
    given = parser.parse_args(argv)
    if job_remote.is_remote(given.job, given):
        return job_remote.logs(given)
    job = Job.find(given.job)
    file = job.path / LOGS / f"rank_{given.rank}.log"
    read = _print_from(file, 0, given.lines)
    if given.follow:
        while True:
            running = job.held()  # before the file is read, so that the last lines are not missed
            read = _print_from(file, read)
            if not running:
                break
            time.sleep(LOOK_SECONDS)
    if not read:
        print(f"job {job.label} has no log in {file.parent} yet", file=sys.stderr)
    return 0


def stop(argv: list[str]) -> int:
    parser = VerbParser("rondo job stop", "Ask a job to finish its step, save a checkpoint and end.")
    parser.add_argument("jobs", metavar="JOB", nargs="+", help=JOB)
    parser.add_argument(
        "--now", action="store_true", help="kill it: the steps since its last checkpoint are lost"
    )
    parser.add_argument("--no-wait", action="store_true", help="return before it has ended")
    arguments = parser.parse_args(argv)
    for job in control.find_all(arguments.jobs):
        running = control.kill(job) if arguments.now else control.ask_to_stop(job)
        if not running:
            print(f"job {job.label} is not running: {summary_of(job).state} at step {job.step}")
        elif arguments.now:
            print(f"job {job.label} is killed; it resumes from its last checkpoint")
        elif arguments.no_wait:
            print(f"job {job.label} stops after its step")
        else:
            _wait(job)
    return 0


def _wait(job: Job) -> None:
    print(f"waiting for job {job.label} to finish its step; --now kills it", file=sys.stderr)
    if control.wait_for_end(job, STOP_SECONDS):
        state = summary_of(job)
        command = job.origin().get("command")
        resume = f"; resume with: {command}" if command and state.state == "paused" else ""
        print(f"job {job.label}: {state.state} at step {state.step}{resume}")


def rm(argv: list[str]) -> int:
    parser = VerbParser("rondo job rm", "Remove jobs with their checkpoints, metrics and results.")
    parser.add_argument("jobs", metavar="JOB", nargs="+", help=JOB)
    parser.add_argument("--force", action="store_true", help="kill a running job; remove a model in use")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    arguments = parser.parse_args(argv)
    jobs = control.find_all(arguments.jobs)
    for job in jobs:
        control.check_removable(job, force=arguments.force)
    lines = [f"{job.label}  {_described(job)}  {human_bytes(control.size_of(job.path))}" for job in jobs]
    if not confirm("Remove", lines, arguments.yes):
        return 1
    names = ", ".join(job.label for job in jobs)
    freed = sum(control.remove(job, force=arguments.force) for job in jobs)
    print(f"removed {names}: {human_bytes(freed)} freed")
    return 0


def _described(job: Job) -> str:
    of = summary_of(job)
    return f"{of.kind or 'job'}, {of.state} at step {steps_of(of.step, of.steps)}"


def steps_of(step: int, steps: int | None) -> str:
    return f"{step}/{steps}" if steps else str(step)


def _print_from(file: Path, start: int, most: int | None = None) -> int:
    """Print the complete lines from a position on, and return the position of the next line."""
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read()
    except FileNotFoundError:
        return start
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode("utf-8", "replace").splitlines()
    for line in lines if most is None else deque(lines, maxlen=max(0, most)):
        print(line)
    sys.stdout.flush()
    return start + len(whole)
