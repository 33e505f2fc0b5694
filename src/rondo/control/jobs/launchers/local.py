"""Jobs as processes on this machine. They outlive the gateway; the next one adopts them by their folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.base.process import kill as kill_child
from rondo.base.process import start
from rondo.base.storage.files import storage_error
from rondo.control.jobs.launchers.command import WAIT, command_of, limited
from rondo.control.jobs.launchers.folder import AttemptFolder, is_alive
from rondo.control.jobs.launchers.identity import identity
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Node
from rondo.control.jobs.launchers.members import kill_members, members
from rondo.control.jobs.launchers.memory import (
    FIRST_KILLED,
    exceeded,
    limit_memory,
    limit_of,
    machine_memory,
    record_exceeded,
    used_memory,
)
from rondo.control.jobs.request import request_of
from rondo.jobs.health import GpuFault, faults
from rondo.jobs.spec import JobSpec

SHELL = FIRST_KILLED + WAIT.format(command='"$@" > output.log 2>&1 < /dev/null')


UNITS = {"memory": "MiB of memory", "cpus": "CPU cores"}
HEALTH_SECONDS = 30.0
"""Time between two checks of the GPUs."""


@dataclass
class LocalLauncher:
    slots: int = 1
    """Jobs at a time without GPUs."""
    gpus: tuple[int, ...] = ()
    nice: int = 0
    time_limit: int | None = None
    """Default limit of an attempt in seconds."""
    command: Callable[[JobSpec], list[str]] = command_of
    name: str = field(default_factory=lambda: f"local@{identity()}")
    """Names the place: the processes and folders of its jobs are there."""
    leaves_objects: ClassVar[bool] = False
    faults: Callable[[], list[GpuFault]] = faults
    _broken: dict[int, GpuFault] = field(default_factory=dict, repr=False)
    """Faults of the GPUs that take no jobs."""
    _checked: float = field(default=-HEALTH_SECONDS, repr=False)
    """When the GPUs were checked, by the monotonic clock."""
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    def check(self, spec: JobSpec) -> None:
        request = request_of(spec)
        if request.nodes > 1:
            raise InvalidRequest(
                f"resources.nodes is {request.nodes}, and this launcher has one machine: see gateway.jobs.launcher.",
                param="resources.nodes",
            )
        if request.gpus > len(self.gpus):
            raise InvalidRequest(
                f"resources.gpus is {request.gpus}, and jobs of this gateway may use {len(self.gpus)}: see "
                "gateway.jobs.gpus.",
                param="resources.gpus",
            )
        for name, asked, most in (
            ("memory", request.memory or 0, machine_memory()),
            ("cpus", request.cpus_per_node if "cpus" in spec.resources else 0, len(os.sched_getaffinity(0))),
        ):
            if asked > most:
                raise InvalidRequest(
                    f"The job needs {asked} {UNITS[name]}, and this machine has {most}: lower resources.{name}.",
                    param=f"resources.{name}",
                )
        if not request.gpus and not self.slots:
            raise Unavailable("This gateway runs no jobs: gateway.jobs.slots is 0.", code="no_slots")

    def room(self, active: Sequence[JobSpec], wanted: JobSpec) -> bool:
        gpus = self._gpus_of(wanted)
        if gpus:
            return sum(map(self._gpus_of, active)) + gpus <= len(self._usable())
        return sum(1 for spec in active if not self._gpus_of(spec)) < self.slots

    def full(self, active: Sequence[JobSpec]) -> bool:
        no_slot = sum(1 for spec in active if not self._gpus_of(spec)) >= self.slots
        return no_slot and sum(map(self._gpus_of, active)) >= len(self._usable())

    def start(self, attempt: Attempt) -> None:
        folder = AttemptFolder.of(attempt.job, attempt.number)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            words = [*self._before(attempt.spec, folder), *self.command(attempt.spec)]
            command = ["/bin/sh", "-c", SHELL, "sh", *words]
            limit_memory(folder, request_of(attempt.spec).memory)
            own = self._devices(attempt.spec, folder) | self._threads(attempt.spec)
            env = folder.environment(dict(attempt.env) | own)
            child = start(command, env=env, cwd=folder.path)
        except OSError as error:
            raise storage_error(folder.path, error) from error
        try:
            folder.keep_process(child.pid)
        except BaseException:
            kill_child(child)
            kill_members(attempt.job, attempt.number)
            raise
        self._children.append(child)
        self._reap()

    def look(self, job: str, number: int) -> AttemptState:
        self._reap()
        folder = AttemptFolder.of(job, number)
        process = folder.process()
        if not folder.of_this_boot and folder.code is None:
            return AttemptState("displaced", detail="its machine was restarted, or replaced by another one")
        if folder.code is None and process is not None and is_alive(*process):
            if broken := self._broken_of(folder):
                self.stop(job, number, kill=True)
                return AttemptState("displaced", detail=broken)
            if not self._exceeds(job, number):
                return AttemptState("running")
            self.stop(job, number, kill=True)
        code = folder.code  # after the look at the process, which writes it last
        over = exceeded(folder)
        if not kill_members(job, number):
            return AttemptState("running", detail="its processes were killed, and have not ended yet")
        if code is not None:
            return AttemptState("ended", code, over if code else "")
        if process is None:
            return AttemptState("absent", detail="the process was never started")
        return AttemptState("lost", detail=over or "the process was killed")

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        folder = AttemptFolder.of(job, number)
        process = folder.process()
        alive = process is not None and folder.of_this_boot and is_alive(*process)
        if process is not None and alive:
            with contextlib.suppress(ProcessLookupError):
                if kill:  # members of the group may have an environment of their own
                    os.killpg(process[0], signal.SIGKILL)
                else:
                    os.kill(process[0], signal.SIGTERM)
        if kill:
            kill_members(job, number)
        return alive

    def clean(self, job: str, number: int) -> None:
        pass

    def nodes(self) -> list[Node]:
        used = {gpu for gpus in self._taken() for gpu in gpus}
        memory = machine_memory()
        cpus, name = os.cpu_count() or 1, socket.gethostname()
        self._usable()
        reason = "; ".join(dict.fromkeys(str(fault) for _, fault in sorted(self._broken.items())))
        state = "draining" if reason else "up"
        return [Node(name, state, cpus, len(self.gpus), len(used), memory, reason)]

    def _exceeds(self, job: str, number: int) -> bool:
        """Whether the attempt uses more memory than requested, which is recorded."""
        folder = AttemptFolder.of(job, number)
        if (limit := limit_of(folder)) is None:
            return False
        used = used_memory(members().get((job, number), ()), limit)
        if used > limit:
            record_exceeded(folder, used, limit)
        return used > limit

    def _usable(self) -> list[int]:
        """GPUs without a fault."""
        if self.gpus and time.monotonic() - self._checked > HEALTH_SECONDS:
            self._checked = time.monotonic()
            self._broken = {
                gpu: each
                for each in self.faults()
                for gpu in (self.gpus if each.gpu is None else (each.gpu,))
            }
        return [gpu for gpu in self.gpus if gpu not in self._broken]

    def _broken_of(self, folder: AttemptFolder) -> str:
        """The fault of a GPU that the attempt uses; empty if it uses none."""
        if len(self._usable()) == len(self.gpus):
            return ""
        for gpu in _numbers_in(folder, "gpus"):
            if (fault := self._broken.get(int(gpu))) is not None:
                return str(fault)
        return ""

    def _devices(self, spec: JobSpec, folder: AttemptFolder) -> dict[str, str]:
        """Variable that limits the process to GPUs that no other attempt uses."""
        if not self.gpus:
            return {}
        used = {gpu for gpus in self._taken() for gpu in gpus}
        free = [str(gpu) for gpu in self._usable() if str(gpu) not in used]
        taken = ",".join(free[: self._gpus_of(spec)])
        (folder.path / "gpus").write_text(taken)
        return {"CUDA_VISIBLE_DEVICES": taken}

    def _threads(self, spec: JobSpec) -> dict[str, str]:
        """Variable that limits the computing threads of each rank to its requested cores."""
        return {"OMP_NUM_THREADS": str(spec.resources["cpus"])} if "cpus" in spec.resources else {}

    def _taken(self) -> Iterator[list[str]]:
        """GPUs of each attempt with a process."""
        for job, number in members():
            yield _numbers_in(AttemptFolder.of(job, number), "gpus")

    def _gpus_of(self, spec: JobSpec) -> int:
        return min(spec.resources.get("gpus", 0), len(self.gpus))

    def _before(self, spec: JobSpec, folder: AttemptFolder) -> list[str]:
        """Niceness, cores and time limit, before the command."""
        found = ["nice", "-n", str(self.nice)] if self.nice else []
        if "cpus" in spec.resources and shutil.which("taskset"):
            found += ["taskset", "-c", self._cores(request_of(spec).cpus_per_node, folder)]
        found += limited(request_of(spec, self.time_limit).time_limit)
        return found

    def _cores(self, count: int, folder: AttemptFolder) -> str:
        """Cores of this process that the fewest other attempts have, as taskset names them. They are recorded."""
        users = Counter(core for each in members() for core in _numbers_in(AttemptFolder.of(*each), "cores"))
        order = sorted(os.sched_getaffinity(0), key=lambda core: (users[str(core)], core))
        taken = ",".join(map(str, sorted(order[:count])))
        (folder.path / "cores").write_text(taken)
        return taken

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]


def _numbers_in(folder: AttemptFolder, file: Literal["gpus", "cores"]) -> list[str]:
    """GPUs or cores of an attempt."""
    with contextlib.suppress(FileNotFoundError):
        return [number for number in (folder.path / file).read_text().split(",") if number]
    return []
