"""Reports of an attempt to its launcher: hash and steps of the job, heartbeats of its ranks, or the error that ended
the process.

A launcher names the file in `RONDO_JOB_REPORT`; without the variable nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rondo.base.errors import NotFound, RondoError
from rondo.base.lock import FOREVER, locked
from rondo.base.storage.files import read_json, storage_error, write_json

VARIABLE = "RONDO_JOB_REPORT"
BEATS = "beats"
"""Folder of the heartbeats beside the report: a file for each rank."""
BEAT_SECONDS = 5.0


def report(**facts: object) -> None:
    """Adds facts to the report of this process's attempt. The first error of several ranks stays: the others are
    mostly its consequences."""
    if not (name := os.environ.get(VARIABLE)):
        return
    file = Path(name)
    try:
        with locked(file.with_suffix(".lock"), FOREVER, required=False):
            known = read_report(file)
            if "error" in known:
                facts.pop("error", None)
            write_json(file, {**known, **facts})
    except OSError as error:
        raise storage_error(file, error) from error


def report_error(error: Exception, exit_code: int) -> None:
    """Reports the error with the exit code of this process, which the process above several ranks replaces by 1."""
    told = {"message": str(error) or repr(error), "param": None, "code": "job_failed", "exit_code": exit_code}
    if isinstance(error, RondoError):
        told |= {"param": error.param, "code": error.code or "job_failed"}
    with contextlib.suppress(RondoError):  # the process ends with the error itself
        report(error=told)


@contextlib.contextmanager
def beating(rank: int) -> Iterator[None]:
    """Sends a heartbeat of this rank every few seconds during the block."""
    if not (name := os.environ.get(VARIABLE)):
        yield
        return
    file, ended = Path(name).parent / BEATS / str(rank), threading.Event()

    def beat(left: bool = False) -> None:
        with contextlib.suppress(OSError):  # a full disk: the job itself reports it
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"host": socket.gethostname(), "left": left}))

    def run() -> None:
        beat()
        while not ended.wait(BEAT_SECONDS):
            beat()

    thread = threading.Thread(target=run, name="rondo-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        beat(left=True)


def read_report(file: Path) -> dict[str, Any]:
    """The report; empty until the process has written it."""
    try:
        found = read_json(file)
    except NotFound:
        return {}
    return found if isinstance(found, dict) else {}
