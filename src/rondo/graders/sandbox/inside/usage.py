"""Resources of each cage, for all its processes together: memory, CPU time, and time spent waiting for a CPU.

`proc` is the host's /proc, in which every process has another number; processes that end meanwhile are left out.
"""

import os
from dataclasses import dataclass, field

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_NANO = 1e-9


@dataclass(frozen=True)
class ProcessTask:
    """A thread."""

    path: str
    """Its folder in /proc."""
    runs: bool
    """The thread is running or waits for a CPU."""
    nice: int
    cpu: float
    waited: float
    """Seconds in the run queue without a CPU."""


@dataclass
class ProcessUsage:
    memory: int = 0
    """Bytes. Shared pages count once per process."""
    cpu: float = 0.0
    """CPU seconds of all processes, including children that have ended."""
    tasks: dict[str, ProcessTask] = field(default_factory=dict)
    first: str = ""
    """The task of the cage's first process, which computes only to start the program."""


def of_cages(proc: int) -> dict[int, ProcessUsage]:
    """Usage by the first process of a cage, as numbered by the worker."""
    worker = os.readlink("self", dir_fd=proc)
    return {
        number: _usage(proc, child)
        for child in _children(proc, worker, _tasks(proc, worker))
        if (number := number_for_worker(proc, child)) is not None
    }


def number_for_worker(proc: int, process: str) -> int | None:
    """A process or thread has a number in each PID namespace that it is in; its own is the last."""
    for line in _text(proc, f"{process}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-2])
    return None


def starved(before: ProcessUsage, now: ProcessUsage) -> float:
    """Seconds between two samples in which other load prevented the cage from running.

    A thread also waits while other threads of its own cage run: at most for the CPU time that they used.
    """
    used = now.cpu - before.cpu
    nothing = ProcessTask("", False, 0, 0.0, 0.0)
    waits = [0.0]
    for name, task in now.tasks.items():
        last = before.tasks.get(name, nothing)
        by_own = max(0.0, used - (task.cpu - last.cpu))
        waits.append(task.waited - last.waited - by_own)
    return max(waits)


def _usage(proc: int, first: str) -> ProcessUsage:
    usage = ProcessUsage(first=first)
    family = [first]
    for process in family:
        threads = _tasks(proc, process)
        family += _children(proc, process, threads)
        usage.memory += _resident(proc, process)
        usage.cpu += sum(map(int, _fields(proc, process)[11:15])) * _TICK
        for thread in threads:
            task = _task(proc, f"{process}/task/{thread}")
            if task is not None:
                usage.tasks[thread] = task
    return usage


def _task(proc: int, path: str) -> ProcessTask | None:
    fields, times = _fields(proc, path), _text(proc, f"{path}/schedstat").split()
    if not fields:
        return None
    cpu, waited = (int(each) * _NANO for each in (times or "00")[:2])  # a kernel may be built without these
    return ProcessTask(path, fields[0] == "R", int(fields[16]), cpu, waited)


def _fields(proc: int, path: str) -> list[str]:
    """Fields of `stat` from the state on; the name before it may contain any character."""
    return _text(proc, f"{path}/stat").rpartition(")")[2].split()


def _tasks(proc: int, process: str) -> list[str]:
    try:
        handle = os.open(f"{process}/task", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return []
    try:
        return os.listdir(handle)
    except OSError:
        return []
    finally:
        os.close(handle)


def _children(proc: int, process: str, threads: list[str]) -> list[str]:
    return [child for thread in threads for child in _text(proc, f"{process}/task/{thread}/children").split()]


def _resident(proc: int, process: str) -> int:
    fields = _text(proc, f"{process}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _text(proc: int, path: str) -> str:
    try:
        handle = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return ""
    try:
        return os.read(handle, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
