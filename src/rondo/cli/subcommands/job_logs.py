"""`rondo job logs`: the log of a job, from its folder."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from rondo.cli.options.arguments import VerbParser
from rondo.jobs.job import Job
from rondo.jobs.session import LOGS

LOOK_SECONDS = 0.2


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo job logs", "The log of a job: its steps, samples, warnings and its end.")
    parser.add_argument(
        "job", metavar="JOB", help="a job's name, or the first 6 or more characters of its hash"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the job ends")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="print the last N lines only")
    parser.add_argument(
        "--rank", type=int, default=0, help="the log of another rank; ranks log warnings only (0)"
    )
    given = parser.parse_args(argv)
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
