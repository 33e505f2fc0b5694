"""Cage of one program: a PID namespace whose first process is the sandbox's own and only waits.

The first process ends with the program, and the kernel then kills all other processes of the namespace.
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
"""Exit code of a cage whose setup failed; a program that exits with this code is reported with 1."""

_INNER_ID = 1000
_OPEN_FILES = 64
"""Maximum number of open files. Each can occupy kernel memory."""
_STACK = 64 << 20
_ABOVE = 200
"""Lowest temporary descriptor while the lower ones are replaced."""


@dataclass(frozen=True)
class JailLimits:
    memory: int
    """Bytes of address space per process, and of memory of all processes together."""
    cpu: int
    """CPU seconds of all processes together, measured by the worker; the kernel applies the same limit per process."""
    disk: int
    """Bytes of all files."""
    files: int
    processes: int
    """Maximum number of processes; threads count."""


@dataclass(frozen=True)
class Walls:
    """Resources that all cages of a worker share."""

    proc: int
    """Descriptor of the host's /proc."""
    space: int
    """Descriptor of the worker's own PID namespace."""
    calls: bytes
    """Seccomp filter of system calls."""


def start(walls: Walls, limits: JailLimits, handles: Sequence[int], life: Callable[[], int]) -> int:
    """Forks a cage and returns its first process. `life` is the body of the program, with `handles` as its descriptors
    0, 1, 2 and so on."""
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
        # A program can send its first process any signal that this process handles.
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
    # The soft limit sends a signal that can be handled; the hard limit kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))
    soft, most = resource.getrlimit(resource.RLIMIT_STACK)
    lowered = _STACK if most == resource.RLIM_INFINITY else min(most, _STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (lowered if soft == resource.RLIM_INFINITY else soft, lowered))


def _program(life: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # Python's default
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
