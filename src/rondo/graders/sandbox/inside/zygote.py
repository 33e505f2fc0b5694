"""Worker process: builds the isolation once, then forks a cage for every requested program.

It never reads a program's source, input or output. It only passes on their descriptors, so that its memory, which every
program has a copy of, holds no data of another program. It measures wall time, CPU time and memory, and reports the end
of each cage.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import cage, called, examiner, filter, grading, house, kernel, script, served, usage

_ROLES: dict[str, Callable[[], int]] = {
    "script": script.life,
    "served": served.life,
    "examiner": examiner.life,
    "called": called.life,
    "grader": grading.life,
}
_LOOK_SECONDS = 0.05
"""Interval in seconds between two measurements of memory and CPU time."""
_NICE_STEP = 1.25
"""Factor of CPU time per step of niceness."""
_NICEST = 19
_CPUS = 1
"""Number of CPUs that programs detect, and so the number of threads in their pools. More CPUs are not guaranteed."""
_MESSAGE = 1 << 16
_HANDLES = 8

# Most frequently imported modules, and those that need a library which programs cannot open.
_IMPORTED = (
    "abc argparse array ast base64 bisect cmath collections.abc contextlib copy csv dataclasses "
    "datetime decimal enum fractions functools heapq io itertools json linecache math numbers "
    "operator os.path pprint queue random re statistics string struct textwrap threading time "
    "tokenize traceback types typing unittest uuid zoneinfo _bz2 _ctypes _hashlib _lzma _sqlite3 "
    "_ssl zlib"
)


@dataclass
class Caged:
    number: int
    first: int
    watch: int
    """Descriptor that becomes readable at the end of the cage."""
    limits: cage.JailLimits
    began: float
    wall: float
    """Limit in seconds, without the time in which other load prevented it from running."""
    longest: float
    """Limit in seconds of total time."""
    used: usage.ProcessUsage = field(default_factory=usage.ProcessUsage)
    starved: float = 0.0
    running: int = 0
    nice: int = 0
    why: str = "exit"


def main(control_number: int, listed: str) -> NoReturn:
    """`listed`: JSON list of folders with packages that programs may import in addition to Python's own."""
    control = socket.socket(fileno=control_number)
    packages = json.loads(listed)
    libraries = [path for path in sys.path if os.path.isdir(path)]
    try:
        _import()
        proc = house.enter(libraries, packages)
        sys.path += packages
    except house.Refused as error:
        _tell(control, refused=error.step, number=error.number, text=str(error))
        os._exit(1)
    except BaseException:
        _tell(control, refused="start", number=0, text=traceback.format_exc())
        os._exit(1)
    inner = os.fork()
    if inner == 0:
        _serve(control, proc)
    control.close()
    _, status = os.waitpid(inner, 0)
    os._exit(0 if status == 0 else 1)


def _import() -> None:
    for name in _IMPORTED.split():
        try:
            importlib.import_module(name)
        except ImportError:  # a Python built without it: the program's own import raises
            continue
    os.cpu_count = lambda: _CPUS


def _serve(control: socket.socket, proc: int) -> NoReturn:
    """Runs as the first process of the worker's PID namespace: all its descendants end with it."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        space = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
        worker = ForkServer(control, cage.Walls(proc, space, filter.program()))
        gc.collect()
        gc.freeze()
        _tell(control, ready=True)
        while worker.turn():
            pass
        os._exit(0)
    except BaseException:
        _tell(control, failed=traceback.format_exc())
        os._exit(1)


class ForkServer:
    def __init__(self, control: socket.socket, walls: cage.Walls) -> None:
        self._control, self._walls = control, walls
        self._cages: dict[int, Caged] = {}
        self._looked = 0.0

    def turn(self) -> bool:
        """Waits for an event and handles it; False after the owner has closed its socket."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for each in self._cages.values():
            poll.register(each.watch, select.POLLIN)
        ready = {handle for handle, _ in poll.poll(_LOOK_SECONDS * 1000 if self._cages else None)}
        for each in list(self._cages.values()):
            if each.watch in ready:
                self._ended(each)
        self._look()
        return self._control.fileno() not in ready or self._asked()

    def _asked(self) -> bool:
        message, handles, _, _ = socket.recv_fds(self._control, _MESSAGE, _HANDLES)
        if not message:
            return False
        asked = json.loads(message)
        try:
            if "kill" in asked:
                self._kill(self._cages.get(asked["kill"]), "killed")
            else:
                self._start(asked, handles)
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def _start(self, asked: dict[str, Any], handles: list[int]) -> None:
        limits = cage.JailLimits(**asked["limits"])
        try:
            first = cage.start(self._walls, limits, handles, _ROLES[asked["role"]])
        except OSError as error:
            _tell(self._control, ended=asked["start"], why="failed", code=0, cpu=0.0, text=str(error))
            return
        caged = Caged(
            asked["start"],
            first,
            os.pidfd_open(first),
            limits,
            time.monotonic(),
            asked["wall"],
            asked["longest"],
        )
        self._cages[caged.number] = caged

    def _look(self) -> None:
        """Ends the cages over a limit of time, or of CPU time or memory of all their processes together."""
        now = time.monotonic()
        if self._cages and now > self._looked + _LOOK_SECONDS:
            self._looked = now
            for number, used in usage.of_cages(self._walls.proc).items():
                for each in self._cages.values():
                    if each.first == number:
                        self._count(each, used)
        for each in self._cages.values():
            took = now - each.began
            if took - each.starved > each.wall:
                self._kill(each, "wall")
            elif took > each.longest:
                self._kill(each, "busy")

    def _count(self, caged: Caged, used: usage.ProcessUsage) -> None:
        used.cpu = max(used.cpu, caged.used.cpu)  # an ending process is briefly missing from the list
        # A wait is counted at its end, so two overlapping waits may be counted one after the other.
        waited = caged.starved + usage.starved(caged.used, used)
        caged.starved = min(waited, time.monotonic() - caged.began)
        caged.used = used
        if used.memory > caged.limits.memory:
            self._kill(caged, "memory")
        if used.cpu > caged.limits.cpu:
            self._kill(caged, "cpu")
        self._share(caged)

    def _share(self, caged: Caged) -> None:
        """Reduces the priority of many running threads, so that together they get about the CPU time of one thread of
        another cage. Priority cannot be restored, so a momentary burst does not count."""
        running = sum(task.runs for name, task in caged.used.tasks.items() if name != caged.used.first)
        crowd, caged.running = min(running, caged.running), running
        if crowd > 1:
            caged.nice = max(caged.nice, min(_NICEST, math.ceil(math.log(crowd, _NICE_STEP))))
        for task in caged.used.tasks.values():
            if task.nice < caged.nice:
                number = usage.number_for_worker(self._walls.proc, task.path)
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.setpriority(os.PRIO_PROCESS, number, caged.nice)

    def _kill(self, caged: Caged | None, why: str) -> None:
        if caged is not None and caged.why == "exit":
            caged.why = why
            signal.pidfd_send_signal(caged.watch, signal.SIGKILL)

    def _ended(self, caged: Caged) -> None:
        _, status, used = os.wait4(caged.first, 0)
        os.close(caged.watch)
        del self._cages[caged.number]
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else code
        why = caged.why if caged.why != "exit" or code != cage.FAILED else "failed"
        cpu = max(used.ru_utime + used.ru_stime, caged.used.cpu)
        _tell(self._control, ended=caged.number, why=why, code=code, cpu=cpu, text="")


def _tell(control: socket.socket, **facts: object) -> None:
    try:
        control.send(json.dumps(facts).encode())
    except BrokenPipeError:  # the owner is gone, which the next turn detects
        return
