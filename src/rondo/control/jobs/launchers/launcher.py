"""Interface of a launcher. An attempt is named by the job's id and its number, so that the next gateway can look it
up after a crash during its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from rondo.jobs.spec import JobSpec

Phase = Literal["waiting", "running", "ended", "lost", "displaced", "cancelled", "absent"]


@dataclass(frozen=True)
class Attempt:
    """One start of a job."""

    job: str
    number: int
    spec: JobSpec
    env: Mapping[str, str]
    avoid: tuple[str, ...] = ()
    """Nodes with a fault, on which the attempt must not start."""


@dataclass(frozen=True)
class AttemptState:
    """State of an attempt's processes. `lost`: they vanished without an exit code. `displaced`: a node failed, or the
    scheduler preempted them. `cancelled`: in the scheduler, by an operator. `absent`: none was ever started."""

    phase: Phase
    code: int | None = None
    detail: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes with a fault, which later attempts avoid."""


@dataclass(frozen=True)
class Node:
    """A machine that runs jobs, as its launcher lists it."""

    name: str
    state: str
    cpus: int = 0
    gpus: int = 0
    gpus_used: int = 0
    memory: int = 0
    """MiB."""
    reason: str = ""
    """Why the node takes no jobs."""


class Launcher(Protocol):
    name: str
    leaves_objects: ClassVar[bool]
    """Whether the scheduler stores an ended attempt until `clean` deletes it."""

    def check(self, spec: JobSpec) -> None:
        """Raises an error that names the field if the launcher can never start the job."""

    def room(self, active: Sequence[JobSpec], wanted: JobSpec) -> bool:
        """Whether a job can start beside the active ones; a scheduler with a queue of its own always has room."""

    def full(self, active: Sequence[JobSpec]) -> bool:
        """Whether no job of any kind can start beside the active ones."""

    def start(self, attempt: Attempt) -> None:
        """Starts the process and returns. Raises an error if it cannot start; then no process exists."""

    def look(self, job: str, number: int) -> AttemptState:
        """State of the attempt, whose processes have ended unless it is `waiting` or `running`. Raises `Unavailable` if
        the scheduler does not answer."""

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        """Signals the process to save and end, or kills it with everything that it started. False if there was no
        process to signal."""

    def clean(self, job: str, number: int) -> None:
        """Deletes the objects of an ended attempt in the scheduler."""

    def nodes(self) -> list[Node]:
        """Machines on which the launcher starts jobs."""
