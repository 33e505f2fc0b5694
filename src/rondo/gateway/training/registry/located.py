"""Files of a registered model on this machine: the folder of a job, an exported checkpoint, an imported folder, or a
copy of weights in an object store."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from rondo.base.environ import minimal
from rondo.base.errors import NotFound, RondoError, StorageError, Unavailable
from rondo.base.lock import locked
from rondo.base.process import exit_reason, last_line
from rondo.base.storage.home import cache_dir, jobs_dir
from rondo.base.telemetry.log import get_logger
from rondo.control.jobs.launchers.folder import PASSED, STORE_KEYS
from rondo.control.jobs.registry.rows import RegisteredModel
from rondo.jobs.folders import model_in
from rondo.jobs.job import Job

log = get_logger("rondo.gateway.registry")
EXPORT_SECONDS = 1800.0
"""Longest time of an export of a checkpoint."""
Loadable = dict[str, Any]
"""A model as the supervisor loads it: name, source, adapter, base, created."""


def located(row: RegisteredModel, remote: RemoteWeights) -> Loadable:
    """Blocks while files are exported or copied."""
    if row.step is not None:
        folder = exported(row)
    elif "://" in row.source:
        folder = remote.fetch(row)
    else:
        folder = Path(row.source)
    if row.step is None and (jobs_dir() / row.job).is_dir() and "://" not in row.source:
        return _of_job(row, Job(jobs_dir() / row.job))
    if not folder.exists():
        raise NotFound(
            f"The files of the model {row.id} are not at {folder} any more: register it again, or train it again.",
            param="model",
            code="model_files_missing",
        )
    if row.is_adapter:
        return _loadable(row, "", str(folder), row.lineage.get("base_folder") or row.base)
    return _loadable(row, str(model_in(folder)), None, None)


def _of_job(row: RegisteredModel, job: Job) -> Loadable:
    whole, adapter = job.export / "config.json", job.adapter / "adapter_config.json"
    source = str(job.export) if whole.is_file() else ""
    if not source and not adapter.is_file():
        raise NotFound(
            f"The files of the model {row.id} are not in {job.path} any more: train it again.",
            param="model",
            code="model_files_missing",
        )
    base = job.origin().get("base")
    return _loadable(row, source, str(job.adapter) if adapter.is_file() else None, base and str(base))


def _loadable(row: RegisteredModel, source: str, adapter: str | None, base: str | None) -> Loadable:
    return {
        "name": row.id,
        "source": source,
        "adapter": adapter,
        "base": base,
        "created": row.created // 1_000_000,
    }


def exported(row: RegisteredModel) -> Path:
    """A checkpoint as a model's or adapter's folder, exported once by `rondo model export`."""
    import subprocess

    target = cache_dir() / "checkpoints" / row.id
    if (target / "complete").exists():
        return target / "model"
    target.mkdir(parents=True, exist_ok=True)
    with locked(target / "lock", EXPORT_SECONDS) as mine:
        if not mine:
            raise Unavailable(f"Another process exports the checkpoint {row.id}: try again later.")
        if (target / "complete").exists():
            return target / "model"
        command = [
            sys.executable,
            "-m",
            "rondo.cli",
            "model",
            "export",
            row.id,
            str(target / "model"),
            "--replace",
        ]
        log.info("checkpoint is exported", extra={"model": row.id})
        try:
            done = subprocess.run(
                command,
                env=minimal((*PASSED, *STORE_KEYS)),
                capture_output=True,
                timeout=EXPORT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StorageError(f"The checkpoint {row.id} was not exported: {error}") from error
        if done.returncode:
            reason = last_line(done.stderr, 500).removeprefix("error: ") or exit_reason(done.returncode)
            kind = NotFound if done.returncode == NotFound.exit_code else RondoError
            raise kind(
                f"The checkpoint {row.id} was not exported: {reason}", param="model", code="export_failed"
            )
        (target / "complete").touch()
    return target / "model"


class RemoteWeights:
    """Weights in an object store, with a bounded cache on this machine. Files are checked by their hashes when they
    arrive. A model's folder has links into the cache; a file that was evicted is fetched again by the next load."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def fetch(self, row: RegisteredModel) -> Path:
        from rondo.data.storage.cache import Cache
        from rondo.data.storage.places import SourceFile

        files = row.files
        if files is None:
            raise NotFound(f"The files of the model {row.id} are not known: register {row.source} again.")
        cache = Cache(self.limit, cache_dir() / "weights", "gateway.jobs.weights_cache_bytes")
        target = cache_dir() / "remote" / hashlib.sha256(row.id.encode()).hexdigest()[:32]
        target.mkdir(parents=True, exist_ok=True)
        with locked(target.with_suffix(".lock"), EXPORT_SECONDS) as mine:
            if not mine:
                raise Unavailable(f"Another process copies the model {row.id}: try again later.")
            for name, (size, sha256) in files.items():
                path = cache.fetch(SourceFile(f"{row.source.rstrip('/')}/{name}", size, sha256), sha256)
                link = target / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(path)
        return target
