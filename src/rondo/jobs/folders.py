"""Job folders, and lookup of a job by its hash or a prefix of it."""

from __future__ import annotations

import re
from pathlib import Path

from rondo.base.errors import InvalidRequest, NotFound, StorageError
from rondo.base.storage.home import jobs_dir

SHORT = 12
"""Characters of a hash in output."""
SHORTEST_PREFIX = 6
EXPORT = "export"
"""Folder of the exported model in a job's folder."""
ADAPTER = "adapter"
"""Folder of the exported adapter, if the job trains one."""
HASH = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},64}}", re.IGNORECASE)


def job_folders() -> list[Path]:
    try:
        return [file.parent for file in jobs_dir().glob("*/spec.json")]
    except OSError as error:
        raise StorageError(f"Cannot read {jobs_dir()}: {error.strerror}.") from error


def find_job(prefix: str, param: str = "job") -> Path:
    """The folder of the only job whose hash starts with `prefix`."""
    if len(prefix) < SHORTEST_PREFIX:
        raise InvalidRequest(
            f"{prefix!r} is too short to name a job: give {SHORTEST_PREFIX} characters of its hash or more.",
            param=param,
        )
    found = [folder for folder in job_folders() if folder.name.startswith(prefix.lower())]
    if not found:
        raise NotFound(
            f"There is no job {prefix!r} in {jobs_dir()}. `rondo job list` shows what there is.",
            param=param,
            code="job_not_found",
        )
    if len(found) > 1:
        names = ", ".join(sorted(folder.name for folder in found))
        raise InvalidRequest(f"{prefix!r} begins {len(found)} jobs: {names}. Give more of it.", param=param)
    return found[0]
