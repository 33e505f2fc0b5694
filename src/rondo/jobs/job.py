"""A job's directory: its spec, its state and one line of metrics per step. One process at a time works in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rondo.base.errors import ConfigError, Conflict, NotFound, StorageError
from rondo.base.lock import lock, open_lock
from rondo.base.storage.files import atomic_write, read_json, storage_error, write_json
from rondo.base.storage.hashing import sha256_json
from rondo.base.storage.home import jobs_dir
from rondo.base.storage.remote import files_at
from rondo.jobs.folders import (
    ADAPTER,
    EXPORT,
    ORIGIN,
    SHORT,
    find_job,
    job_folders,
    name_job,
    name_of_job,
    update_origin,
)
from rondo.jobs.metrics import last_rows, rows_after

State = Literal["queued", "starting", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]

CHECKPOINT = re.compile(r"step_(\d+)/manifest\.json$")
LOCK_SECONDS = 1.0
"""Seconds of retries for a job's lock, because every check of a job's state holds the lock for an instant."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a job's lock, as it has recorded itself in the lock file; the first rank of several."""

    pid: int = 0
    """0 until the process has recorded itself."""
    host: str = ""

    @classmethod
    def read(cls, handle: int) -> Holder:
        pid, _, host = os.pread(handle, 300, 0).decode(errors="replace").partition(" ")
        return cls(int(pid), host) if pid.isdigit() else cls()

    @property
    def here(self) -> bool:
        return self.host in ("", socket.gethostname())

    def __str__(self) -> str:
        if not self.pid:
            return ""
        return f" ({self.pid})" if self.here else f" ({self.pid} on {self.host})"


@dataclass(frozen=True)
class Job:
    path: Path
    writes: bool = True
    """True on the rank that writes; on the job's other ranks, writing and locking are no operations."""

    @classmethod
    def of(cls, spec: dict[str, Any], *, writes: bool = True, name: str = "", **origin: str) -> Job:
        """The directory of this spec. Equal specs, including the hash of the data, are the same job. `origin` has
        varying names of equal content, such as the model's name, and is not a part of the spec; neither is `name`,
        which an existing job takes over.
        """
        job = cls(jobs_dir() / sha256_json(spec), writes)
        new = writes and not (job.path / "spec.json").exists()
        if writes and name:
            name_job(job.path, name)
        if new:
            update_origin(job.path, **origin, started=time.time())
            write_json(job.path / "spec.json", spec)
        job._check_place(origin.get("save_to", ""))
        return job

    def _check_place(self, asked: str) -> None:
        """Reject a changed `save_to`: a resumed job reads its checkpoints from their original place."""
        there = str(self.origin().get("save_to", ""))
        if asked and asked != there and (self.path / "spec.json").exists():
            raise ConfigError(
                f"Job {self.short} has its checkpoints at {self.checkpoints}. Leave train.save_to out; or move them to "
                f"{asked.rstrip('/')}/{self.name}, and save_to in {self.path / ORIGIN} with them.",
                param="train.save_to",
            )

    @classmethod
    def all(cls) -> list[Job]:
        """All jobs of this machine, the last started first."""
        return sorted(map(cls, job_folders()), key=lambda job: (-job.started, job.name))

    @classmethod
    def find(cls, text: str) -> Job:
        """The only job with this name, hash or prefix of a hash."""
        return cls(find_job(text))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def short(self) -> str:
        return self.name[:SHORT]

    @property
    def label(self) -> str:
        """The job's name, or the first characters of its hash."""
        return name_of_job(self.path) or self.short

    @property
    def export(self) -> Path:
        return self.path / EXPORT

    @property
    def checkpoints(self) -> str:
        """Folder or URL of the checkpoints."""
        elsewhere = str(self.origin().get("save_to", "")).rstrip("/")
        return f"{elsewhere}/{self.name}" if elsewhere else str(self.path / "checkpoints")

    @property
    def adapter(self) -> Path:
        return self.path / ADAPTER

    @property
    def result(self) -> Path:
        """The exported model, or the exported adapter if it cannot be merged."""
        return self.export if (self.export / "config.json").is_file() else self.adapter

    @property
    def done(self) -> bool:
        left = (self.export / "config.json").is_file() or (self.adapter / "adapter_config.json").is_file()
        return self.state() == "succeeded" and left

    @property
    def started(self) -> float:
        """Time of the first start, in seconds since 1970."""
        with contextlib.suppress(StorageError):
            return float(self.origin().get("started", 0))
        return 0.0

    def origin(self) -> dict[str, Any]:
        """The `origin` of `of`; empty if the job has none."""
        return self._read(ORIGIN)

    def spec(self) -> dict[str, Any]:
        return self._read("spec.json")

    def status(self) -> dict[str, Any]:
        """The last written status. A killed process leaves the status that preceded its end."""
        return self._read("status.json")

    def state(self) -> State | None:
        state: State | None = self.status().get("state")
        return state

    @property
    def step(self) -> int:
        """The last reported step."""
        return int(self.status().get("step", 0))

    def set_status(self, state: State, step: int, **facts: object) -> None:
        if self.writes:
            write_json(
                self.path / "status.json", {"state": state, "step": step, "time": time.time(), **facts}
            )

    def end(self, state: State, step: int, **facts: object) -> None:
        """Set the final status of a failed job. A StorageError is suppressed, so that it does not replace the job's
        own error.
        """
        with contextlib.suppress(StorageError):
            self.set_status(state, step, **facts)

    def succeed(self, step: int, **facts: float) -> Path:
        self.set_status("succeeded", step, model=str(self.result), **facts)
        return self.result

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the job's lock, or raise Conflict if another process holds it. The lock is released when its process
        ends, also after a crash.
        """
        if not self.writes:
            yield
            return
        handle = self._open_lock()
        try:
            if not lock(handle, LOCK_SECONDS, required=False):
                raise Conflict(
                    f"Another process{Holder.read(handle)} is working on job {self.short}. Wait until it has ended, "
                    f"or stop it (`rondo job stop {self.label}`): the job resumes from its last checkpoint.",
                    code="job_is_running",
                )
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
            yield
        finally:
            os.close(handle)

    def held(self) -> bool:
        """Whether a process works on the job."""
        return self.holder() is not None

    def holder(self) -> Holder | None:
        """The process that works on the job. The ID of an ended process in the lock file is not returned, because the
        kernel has released its lock.
        """
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            return None if lock(handle, required=False) else Holder.read(handle)
        finally:
            os.close(handle)

    def log(self, row: dict[str, object]) -> None:
        if not self.writes:
            return
        place = self.path / "metrics.jsonl"
        try:
            with place.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise storage_error(place, error) from error

    def metrics(self, after: int | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """One row per step, of the steps after `after`; malformed lines are skipped."""
        return rows_after(self.path / "metrics.jsonl", after, limit)

    def last_metrics(self) -> dict[str, Any]:
        rows = last_rows(self.path / "metrics.jsonl")
        return rows[-1] if rows else {}

    def saved_steps(self) -> dict[int, float]:
        """Steps of the complete checkpoints, the newest first, with the times at which they were saved."""
        found = {}
        for path, saved in files_at(self.checkpoints, "step_*/manifest.json").items():
            if match := CHECKPOINT.search(path):
                found[int(match[1])] = saved
        return dict(sorted(found.items(), reverse=True))

    def forget_after(self, step: int) -> None:
        """Delete the metrics of steps that will be repeated, and a line truncated by a crash."""
        file = self.path / "metrics.jsonl"
        if not self.writes or not file.exists():
            return
        kept = []
        for line in file.read_text().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["step"] <= step:
                kept.append(line + "\n")
        atomic_write(file, "".join(kept))

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = read_json(self.path / name)
        except NotFound:
            return {}
        if not isinstance(found, dict):
            raise StorageError(f"{self.path / name} is not a JSON object. Restore it or remove it.")
        return found

    def _open_lock(self) -> int:
        try:
            return open_lock(self.path / "lock")
        except OSError as error:
            raise storage_error(self.path / "lock", error) from error
