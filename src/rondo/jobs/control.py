"""Control of jobs from another process: stop, kill and remove, by the process recorded in the job's lock file."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from rondo.base.errors import Conflict, InvalidRequest, RondoError
from rondo.base.lock import is_in_use
from rondo.base.storage.files import storage_error
from rondo.jobs.folders import find_job, job_folders, model_in
from rondo.jobs.job import Holder, Job

LOOK_SECONDS = 0.1
KILL_SECONDS = 30.0
"""Seconds in which the lock of a killed process must be released."""


def ask_to_stop(job: Job) -> bool:
    """Ask the job's process to finish its step and save, as Ctrl-C does; False if no process works on the job."""
    return _send(job, signal.SIGTERM)


def kill(job: Job) -> bool:
    """Kill the job's process, and mark the job as paused; False if no process works on it."""
    if not _send(job, signal.SIGKILL):
        return False
    if not wait_for_end(job, KILL_SECONDS):
        raise Conflict(
            f"Job {job.label} still has its lock {KILL_SECONDS:.0f} s after its process was killed."
        )
    if job.state() in ("starting", "running"):
        with job.hold():
            job.set_status("paused", job.step, **_kept(job), reason="killed by `rondo job stop --now`")
    return True


def wait_for_end(job: Job, seconds: float) -> bool:
    """Whether the job has no process any more after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while job.holder() is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def check_removable(job: Job, *, force: bool = False) -> None:
    """Raise if the job is running, or if its model is in use by a server or by another job, unless `force`."""
    if force:
        return
    if job.held():
        raise Conflict(
            f"Job {job.label} is running: stop it first (`rondo job stop {job.label}`), or give --force.",
            code="job_is_running",
        )
    check_unused(job.export, f"the model of job {job.label}")


def check_unused(folder: Path, what: str) -> None:
    """Raise if a process serves or trains the model in the folder, or if an unfinished job needs it to resume."""
    if not folder.exists():
        return
    folder = model_in(folder)
    if is_in_use(folder):
        raise Conflict(f"{what} is in use by a running server or job: end it first, or give --force.")
    if waiting := ", ".join(job.label for job in dependants(folder)):
        raise Conflict(
            f"{what} is the base of an unfinished job ({waiting}), which could not resume: give --force."
        )


def remove(job: Job, *, force: bool = False) -> int:
    """Remove the job's folder and return its size in bytes. A running job is an error unless `force`, which kills it.
    Checkpoints in another place (`save_to`) are not removed.
    """
    check_removable(job, force=force)
    if job.held():
        kill(job)
    with job.hold():
        return remove_folder(job.path)


def remove_folder(folder: Path) -> int:
    """Remove the folder of a job or a model and return its size in bytes. It vanishes from lists at once, even if this
    process ends before all files are removed.
    """
    size = size_of(folder)
    aside = folder.parent / f".{secrets.token_hex(8)}.removed"
    try:
        os.rename(folder, aside)
    except OSError as error:
        raise storage_error(folder, error) from error
    for left in folder.parent.glob(".*.removed"):  # those of interrupted removals too
        if left.is_symlink():
            left.unlink()
        else:
            shutil.rmtree(left, ignore_errors=True)
    return size


def dependants(folder: Path) -> Iterator[Job]:
    """Unfinished jobs whose base model is in the folder: they need it to resume."""
    for other in job_folders():
        job = Job(other)
        with contextlib.suppress(RondoError):
            if job.path != folder.parent and job.state() != "succeeded" and _base_of(job) == folder:
                yield job


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


def _base_of(job: Job) -> Path | None:
    """Folder of the job's base model, as recorded when the job was created."""
    base = job.origin().get("base")
    return Path(base) if base else None


def _send(job: Job, number: signal.Signals) -> bool:
    """Send a signal to the process that holds the job's lock. The process is opened before the lock is checked again,
    so that a reused process ID never receives the signal.
    """
    holder = job.holder()
    if holder is None:
        return False
    _check_here(job, holder)
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return False
    try:
        if job.holder() != holder:
            return _send(job, number)
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise InvalidRequest(
            f"Process {holder.pid} of job {job.label} belongs to another user: stop the job as that user."
        ) from error
    finally:
        os.close(process)
    return True


def _check_here(job: Job, holder: Holder) -> None:
    if not holder.here:
        raise InvalidRequest(f"Job {job.label} runs on {holder.host}: stop it there.", code="other_host")
    if not holder.pid:
        raise Conflict(f"Job {job.label} is just starting: try again in a second.", code="job_is_starting")


def _kept(job: Job) -> dict[str, object]:
    return {
        name: value for name, value in job.status().items() if name not in ("state", "step", "time", "reason")
    }


def find_all(names: list[str]) -> list[Job]:
    """The jobs of these names or hashes, each once."""
    return [Job(folder) for folder in dict.fromkeys(find_job(name) for name in names)]
