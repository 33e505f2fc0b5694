"""The time in which a process works on a job: lock, log files, final state and report."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rondo.base.lock import in_use
from rondo.base.telemetry.log import HumanFormatter, get_logger
from rondo.jobs.job import Job, State
from rondo.jobs.report import SESSIONS, write_report

log = get_logger(__name__)

LOGS = "logs"
SHOWN = ("loss", "reward", "reward/correct", "lr", "grad_norm", "tokens_per_second", "mfu")
HELD_OUT = ("evaluate/", "held_out/")
LINE_SECONDS = 5.0
"""Least seconds between two logged steps."""
Ended = Callable[[BaseException], tuple[State, str]]
"""State and reason after an error that ended the work."""


@contextlib.contextmanager
def working(
    job: Job, steps: int, ended: Ended, *, rank: int = 0, model: Path | None = None
) -> Iterator[JobLog]:
    """Hold the job's lock, write its log, and at the end its state and its report. `model` is the folder of the base
    model, which `rondo model rm` refuses to remove meanwhile.
    """
    with job.hold(), in_use(model or job.path), JobLog(job, rank) as written:
        begin = time.time()
        job.set_status("starting", job.step, steps=steps)
        written.line(f"started: {job.origin().get('command') or 'from Python'}")
        try:
            yield written
        except BaseException as error:
            state, reason = ended(error)
            job.end(state, job.step, steps=steps, reason=reason)
            written.line(f"{state}: {reason}")
            raise
        else:
            written.line(f"{job.state()}: {job.result}")
        finally:
            if job.writes:
                _add_session(job, begin)
                report(job)


def report(job: Job) -> None:
    """Write the report. A failure is logged, so that it does not replace the job's own result or error."""
    try:
        write_report(job)
    except Exception as error:
        log.warning("the report of job %s could not be written: %r", job.label, error)


class JobLog(logging.Handler):
    """The job's log file of this rank: Rondo's log lines, and one line per step, at most every few seconds. The file is
    created with its first line.
    """

    def __init__(self, job: Job, rank: int = 0) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(HumanFormatter())
        self._file = job.path / LOGS / f"rank_{rank}.log"
        self._rank, self._last = rank, -math.inf

    def __enter__(self) -> JobLog:
        logging.getLogger("rondo").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("rondo").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(f"{time.strftime('%Y-%m-%d')} {self.format(record)}")
        except Exception:
            self.handleError(record)

    def line(self, text: str) -> None:
        """A line about the job itself, of the first rank only."""
        if not self._rank:
            with contextlib.suppress(OSError):
                self._write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}")

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        evaluated = any(name.startswith(HELD_OUT) for name in metrics)
        if step in (1, steps) or evaluated or now - self._last >= LINE_SECONDS:
            self._last = now
            shown = {
                name: value for name, value in metrics.items() if name in SHOWN or name.startswith(HELD_OUT)
            }
            facts = "  ".join(f"{name} {value + 0.0:.4g}" for name, value in shown.items())
            self.line(f"step {step} of {steps}  {facts}")

    def _write(self, line: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _add_session(job: Job, begin: float) -> None:
    row = {
        "begin": begin,
        "end": time.time(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "state": job.state(),
    }
    with contextlib.suppress(OSError), (job.path / SESSIONS).open("a") as file:
        file.write(json.dumps(row) + "\n")
