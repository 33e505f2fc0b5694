"""Jobs of this machine whose models the registry may lack: by name, those that have ended, those of the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rondo.base.errors import RondoError
from rondo.control.jobs.book import JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.registry.rows import CHECKPOINT
from rondo.jobs.folders import find_job, job_folders
from rondo.jobs.job import Job


def job_named(name: str) -> tuple[Job, int | None] | None:
    """A job that has left the model, and the step if the text names a checkpoint."""
    match = CHECKPOINT.fullmatch(name)
    step = int(match["step"]) if match else None
    try:
        job = Job(find_job(match["model"] if match else name))
    except RondoError:
        return None
    there = job.done if step is None else step in job.saved_steps()
    return (job, step) if there else None


def finished_jobs() -> set[str]:
    """Hashes of jobs that have left a model."""
    found = set()
    for folder in job_folders():
        job = Job(folder)
        with suppress(RondoError):
            if job.done:
                found.add(job.name)
    return found


def hashes_of(rows: Iterable[JobRow]) -> set[str]:
    """Hashes of the gateway's jobs, also of those whose hash only their process has computed."""
    reported = (row.hash or AttemptFolder.of(row.id, row.attempt).report().get("hash") for row in rows)
    return {str(hash) for hash in reported if hash}
