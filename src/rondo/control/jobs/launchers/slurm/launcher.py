"""Jobs as batch jobs of Slurm, whose queue decides when they start."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from rondo.base.errors import InvalidRequest, RondoError
from rondo.base.storage.files import atomic_write, storage_error
from rondo.base.telemetry.log import get_logger
from rondo.control.config import SlurmConfig
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Node, Phase
from rondo.control.jobs.launchers.slurm import commands
from rondo.control.jobs.launchers.slurm.commands import SlurmJob
from rondo.control.jobs.launchers.slurm.script import ABANDONED, script_of
from rondo.control.jobs.request import request_of
from rondo.jobs.health import read_reports
from rondo.jobs.spec import JobSpec

log = get_logger("rondo.jobs")

PHASES: dict[str, Phase] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_FED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "SUSPENDED": "waiting",
    "STOPPED": "waiting",
    "COMPLETED": "ended",
    "FAILED": "ended",
    "TIMEOUT": "ended",
    "OUT_OF_MEMORY": "ended",
    "DEADLINE": "ended",
    "CANCELLED": "cancelled",
    "NODE_FAIL": "displaced",
    "BOOT_FAIL": "displaced",
    "PREEMPTED": "displaced",
    "REVOKED": "displaced",
}
"""Phases by state of the Slurm job; in every other state, it has processes."""
DETAILS = {
    "TIMEOUT": "its time limit was reached before it had saved",
    "OUT_OF_MEMORY": "it used more memory than requested",
    "DEADLINE": "its deadline has passed",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "PREEMPTED": "it was preempted",
}
STOPPED = "stopped"
"""File of an attempt that the gateway has stopped; any other cancellation is an operator's."""
QUEUE_SECONDS = 0.5
"""Age up to which one answer of squeue serves the looks at all jobs."""


@dataclass
class SlurmLauncher:
    config: SlurmConfig = field(default_factory=SlurmConfig)
    time_limit: int | None = None
    """Default limit of an attempt in seconds."""
    name: str = "slurm"
    leaves_objects: ClassVar[bool] = False
    _queue: dict[int, SlurmJob] = field(default_factory=dict, repr=False)
    _seen: float = field(default=-QUEUE_SECONDS, repr=False)
    """When the queue was read, by the monotonic clock."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, spec: JobSpec) -> None:
        request_of(spec)

    def room(self, active: Sequence[JobSpec], wanted: JobSpec) -> bool:
        return True

    def full(self, active: Sequence[JobSpec]) -> bool:
        return False

    def start(self, attempt: Attempt) -> None:
        folder = AttemptFolder.of(attempt.job, attempt.number)
        request = request_of(attempt.spec, self.time_limit)
        name, comment = _name(attempt.job, attempt.number), _comment(attempt.job, attempt.number)
        text = script_of(attempt.spec.arguments(), request, self.config, name, comment, attempt.avoid)
        script = folder.path / "job.sh"
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            atomic_write(script, text)
        except OSError as error:
            raise storage_error(folder.path, error) from error
        env = folder.environment(dict(attempt.env)) | commands.environment()
        try:
            id = commands.sbatch(str(script), env, str(folder.path))
            atomic_write(folder.path / "slurm", f"{id}\n")
        except BaseException as error:
            _abandon(folder)
            if isinstance(error, InvalidRequest) and attempt.avoid:
                error.message += f" Nodes with a GPU fault are excluded: {', '.join(attempt.avoid)}."
            raise

    def look(self, job: str, number: int) -> AttemptState:
        folder = AttemptFolder.of(job, number)
        found, id = self._find(folder, job, number), _recorded(folder)
        if found is None and id is None:
            _abandon(folder)
            return AttemptState("absent", detail="it was never submitted to Slurm")
        if found is None:
            if folder.code is not None:
                return AttemptState("ended", folder.code)
            return AttemptState("lost", detail=f"Slurm does not know its job {id}")
        phase = PHASES.get(found.state, "running")
        if phase == "ended" and found.state != "TIMEOUT":
            code = found.code if folder.code is None else folder.code
            if code and (faulty := read_reports(folder.path)):
                return self._drained(faulty)
            return AttemptState("ended", code, DETAILS.get(found.state, ""))
        if phase == "cancelled" and (folder.path / STOPPED).exists():
            return AttemptState("ended", folder.code, "it was stopped")
        if phase == "displaced":  # another attempt follows, and Slurm must not requeue this one
            _abandon(folder)
            commands.scancel(found.id)
        return AttemptState(phase, folder.code, _detail(found, phase))

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        folder = AttemptFolder.of(job, number)
        found = self._find(folder, job, number, fresh=True)
        if found is None or PHASES.get(found.state) in ("ended", "displaced", "cancelled"):
            return False
        (folder.path / STOPPED).touch()
        if kill:
            commands.scancel(found.id)
            return True
        if found.state == "PENDING":  # only then: it may have started since
            commands.scancel(found.id, "--state=PENDING")
        else:
            commands.scancel(found.id, "--batch", "--signal=TERM")
        return True

    def clean(self, job: str, number: int) -> None:
        pass

    def nodes(self) -> list[Node]:
        return commands.sinfo()

    def _drained(self, faulty: Mapping[str, Sequence[str]]) -> AttemptState:
        """Drains the nodes with faulty GPUs; the next attempt excludes those that could not be drained."""
        left = list[str]()
        told = "; ".join(f"{node}: {', '.join(faults)}" for node, faults in faulty.items())
        for node, faults in faulty.items():
            try:
                commands.drain(node, f"rondo: {', '.join(faults)}")
            except RondoError as error:  # without an operator's rights
                log.warning("node is not drained", extra={"node": node, "error": error.message})
                told += f". {node} could not be drained: {error.message}"
                left.append(node)
        return AttemptState("displaced", detail=told, nodes=tuple(left))

    def _find(self, folder: AttemptFolder, job: str, number: int, fresh: bool = False) -> SlurmJob | None:
        """The Slurm job of the attempt, by its recorded id, or by its comment after a crash during submission."""
        id = _recorded(folder)
        recent = not fresh and time.monotonic() - self._seen <= QUEUE_SECONDS
        found = self._in_queue(id, job, number) if recent else None
        if found is None:
            with self._lock:
                self._queue = {each.id: each for each in commands.squeue()}
                self._seen = time.monotonic()
            found = self._in_queue(id, job, number)
        if found is None and id is not None:
            return commands.sacct(id)
        if found is not None and id is None:
            atomic_write(folder.path / "slurm", f"{found.id}\n")
        return found

    def _in_queue(self, id: int | None, job: str, number: int) -> SlurmJob | None:
        """The job in the last answer of squeue."""
        if id is not None:
            found = self._queue.get(id)
            # Ids begin anew after the loss of the controller's state.
            return found if found is not None and found.name == _name(job, number) else None
        comment = _comment(job, number)
        return next((each for each in self._queue.values() if each.comment == comment), None)


def _detail(found: SlurmJob, phase: Phase) -> str:
    again = f" after {found.restarts} requeues" if found.restarts else ""
    if phase == "waiting":
        return f"Slurm job {found.id} waits{again}: {found.reason or 'no reason yet'}"
    if phase == "running":
        return f"Slurm job {found.id} runs on {found.nodes}{again}"
    if phase == "cancelled":
        return f"Slurm job {found.id} was cancelled"
    return DETAILS.get(found.state, found.state)


def _name(job: str, number: int) -> str:
    return f"{job}-{number}"


def _comment(job: str, number: int) -> str:
    return f"rondo:{job}:{number}"


def _recorded(folder: AttemptFolder) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((folder.path / "slurm").read_text())
    return None


def _abandon(folder: AttemptFolder) -> None:
    """A submission whose outcome is unknown must not start later."""
    place: Path = folder.path / ABANDONED
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    except OSError as error:
        raise storage_error(place, error) from error
