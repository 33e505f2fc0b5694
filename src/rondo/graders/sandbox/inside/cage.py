"""One program's cage: a process space whose first process is ours and does nothing but wait.

When the program ends, the first process ends, and the kernel kills whatever else is in there.
"""

import fcntl
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from . import kernel
from .house import BOX, write_maps

FAILED = 125
"""What a cage that could not be made ends with; a program that does so ends with 1."""

_INNER_ID = 1000
_OPEN_FILES = 64
"""Each can hold some memory of the kernel's."""
_STACK = 64 << 20
_ABOVE = 200
"""Handles are put there while those below are cleared."""


@dataclass(frozen=True)
class JailLimits:
    memory: int
    """Bytes of address space of each process, and what all of them may hold together."""
    cpu: int
    """Seconds of all processes together; the worker counts them, and the kernel those of each."""
    disk: int
    """Bytes of all files."""
    files: int
    processes: int
    """Threads count."""


@dataclass(frozen=True)
class Walls:
    """What a worker has for all its cages."""

    proc: int
    """A handle on the host's /proc."""
    space: int
    """A handle on the worker's own process space."""
    calls: bytes
    """The filter of system calls."""


def start(walls: Walls, limits: JailLimits, handles: Sequence[int], life: Callable[[], int]) -> int:
    """Forks a cage and returns its first process. `life` is the program's, whose 0, 1, 2 and so on `handles` become."""
    kernel.unshare(kernel.CLONE_NEWPID)
    try:
        first = os.fork()
    except OSError:
        kernel.setns(walls.space, kernel.CLONE_NEWPID)
        raise
    if first == 0:
        _first(walls, limits, handles, life)
    kernel.setns(walls.space, kernel.CLONE_NEWPID)
    return first


def _first(walls: Walls, limits: JailLimits, handles: Sequence[int], life: Callable[[], int]) -> NoReturn:
    code = FAILED
    try:
        _close_in(walls, limits, handles)
        program = os.fork()
        if program == 0:
            _program(life)
        os.closerange(0, len(handles))
        ended = 0
        while ended != program:
            ended, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        code = 128 - code if code < 0 else 1 if code == FAILED else code
    finally:
        os._exit(code)


def _close_in(walls: Walls, limits: JailLimits, handles: Sequence[int]) -> None:
    os.setsid()
    for handled in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        # A program can send to its first process whatever that one handles.
        signal.signal(handled, signal.SIG_DFL)
    _write(walls.proc, "self/oom_score_adj", b"1000")
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    write_maps(walls.proc, _INNER_ID, 0, 0)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", BOX, "tmpfs", flags, f"size={limits.disk},nr_inodes={limits.files},mode=700")
    os.chdir(BOX)
    raised = [fcntl.fcntl(handle, fcntl.F_DUPFD, _ABOVE) for handle in handles]
    for number, handle in enumerate(raised):
        os.dup2(handle, number)
    os.closerange(len(handles), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    _limit(limits)
    kernel.filter_calls(walls.calls)


def _limit(limits: JailLimits) -> None:
    hard = {
        resource.RLIMIT_AS: limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_NPROC: limits.processes + 1,  # with the first process
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for kind, value in hard.items():
        resource.setrlimit(kind, (value, value))
    # The signal at the first can be handled, what happens at the second cannot.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))
    soft, most = resource.getrlimit(resource.RLIMIT_STACK)
    lowered = _STACK if most == resource.RLIM_INFINITY else min(most, _STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (lowered if soft == resource.RLIM_INFINITY else soft, lowered))


def _program(life: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # as Python has them
        code = life()
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _write(proc: int, name: str, data: bytes) -> None:
    handle = os.open(name, os.O_WRONLY, dir_fd=proc)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
