"""A worker's namespaces and its root folder, made once; every program's cage is made inside.

The root holds Python's library, the few device files that programs expect and an empty folder; nothing else of the
machine. The only network is a loopback device that is down.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from . import kernel

BOX = "/box"
"""Working folder of a program, and the only one that is writable."""

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_ZONES = "/usr/share/zoneinfo"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_INSTALLED = ("site-packages", "dist-packages")
_PLACES = ("/tmp", "/mnt", "/var", "/usr")
_FIRST_OUTER_ID = 1_900_000_000
"""First user id of workers that run as root: past every range that distributions assign."""

T = TypeVar("T")


class Refused(Exception):
    """The machine refused a step of the isolation; has the step and the error number."""

    def __init__(self, step: str, number: int, text: str) -> None:
        super().__init__(text)
        self.step, self.number = step, number


def enter(libraries: Sequence[str], packages: Sequence[str]) -> int:
    """Moves this process into new namespaces; its next child is the first process of a new PID namespace.

    Returns a descriptor of the host's /proc, which no program may ever hold.
    """
    os.umask(0o022)
    with contextlib.suppress(
        PermissionError
    ):  # an ordinary user retains its groups, which have no rights inside
        os.setgroups([])
    _become_root_of_a_user_space()
    apart = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    _step("namespaces", lambda: kernel.unshare(apart | kernel.CLONE_NEWPID))
    proc = _step("/proc", lambda: os.open("/proc", os.O_PATH | os.O_DIRECTORY))
    system = [path for path in (_ZONES, *(_SYSTEM if packages else ())) if os.path.isdir(path)]
    shown = _opened([*libraries, *system, *_DEVICES])
    added = _opened(packages)
    # Root can open folders with restricted access; from here on no privilege of root is left.
    _step("identity", _drop_identity)
    _step("mounts", lambda: kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE))
    _step("root folder", lambda: _build_root(shown, added))
    return proc


def write_maps(proc: int, inner: int, uid: int, gid: int, whose: str = "self") -> None:
    """Writes the id maps of a user namespace: one user and one group of the parent namespace."""
    lines = {"setgroups": "deny", "uid_map": f"{inner} {uid} 1", "gid_map": f"{inner} {gid} 1"}
    for name, line in lines.items():
        handle = os.open(f"{whose}/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def _become_root_of_a_user_space() -> None:
    """An ordinary user may map itself alone; for root, a helper outside the namespace maps an unused user id."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    uid, gid = os.geteuid(), os.getegid()
    outer = None if uid else _outer_id()
    if outer is None:
        _step("user namespace", lambda: kernel.unshare(kernel.CLONE_NEWUSER))
        _step("user map", lambda: write_maps(proc, 0, uid, gid))
    else:
        _unshare_with_helper(proc, outer)
    os.close(proc)


def _unshare_with_helper(proc: int, outer: int) -> None:
    moved, move = os.pipe()
    worker = str(os.getpid())
    helper = os.fork()
    if helper == 0:
        _map_when_told(proc, worker, outer, moved, move)
    try:
        _step("user namespace", lambda: kernel.unshare(kernel.CLONE_NEWUSER))
        os.write(move, b".")
    finally:
        os.close(move)
        os.close(moved)
        _, status = os.waitpid(helper, 0)
    if status:
        number = os.waitstatus_to_exitcode(status)
        raise Refused("user map", number, os.strerror(number))


def _map_when_told(proc: int, worker: str, outer: int, moved: int, move: int) -> None:
    """Main function of the helper process."""
    number = 0
    try:
        os.close(move)
        if os.read(moved, 1):
            write_maps(proc, 0, outer, outer, whose=worker)
    except OSError as error:
        number = error.errno or 1
    finally:
        os._exit(number)


def _outer_id() -> int | None:
    """A user id of the host for this worker alone; None if only root's is available."""
    with open("/proc/self/uid_map") as file:
        rows = [line.split() for line in file]
    first, count = max(((int(row[0]), int(row[2])) for row in rows), key=lambda each: each[1])
    own = _FIRST_OUTER_ID + os.getpid()
    if own < first + count:
        return own
    return first + count - 1 - os.getpid() % (count // 2) if count > 1 else None


def _drop_identity() -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # After a change of user, the process's files in /proc belong to root unless it is dumpable; children write their id
    # maps there.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _opened(paths: Sequence[str]) -> list[tuple[str, int]]:
    """Each path with an open descriptor, except for paths inside another one of them."""
    opened: dict[str, int] = {}
    for path in sorted(set(map(os.path.abspath, paths)), key=len):
        if os.path.lexists(path) and not any(path.startswith(f"{outer}/") for outer in opened):
            opened[path] = _step(f"reading {path}", partial(os.open, path, os.O_PATH))
    return list(opened.items())


def _build_root(shown: list[tuple[str, int]], added: list[tuple[str, int]]) -> None:
    place = next(filter(os.path.isdir, _PLACES))
    plain = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", place, "tmpfs", plain, "size=1m,nr_inodes=1k,mode=755")
    for path, handle in shown:
        _show(place + path, handle)
    for path, _ in shown:
        for folder in (f"{place}{path}/{name}" for name in _INSTALLED):
            if os.path.isdir(folder):
                kernel.mount("tmpfs", folder, "tmpfs", plain, "size=4k,nr_inodes=1,mode=755")
    for path, handle in added:
        _show(place + path, handle)
    os.makedirs(place + BOX)
    for path in ("/tmp", "/dev/shm"):
        if not os.path.isdir(place + path):  # a library may already be there
            os.symlink(BOX, place + path)
    kernel.make_root(place)
    kernel.restrict_mount("/", kernel.READ_ONLY, below=False)


def _show(target: str, handle: int) -> None:
    """Bind-mounts the file or folder of `handle` read-only at `target`."""
    flags = kernel.READ_ONLY | kernel.NO_SUID
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.makedirs(target, exist_ok=True)
        flags |= kernel.NO_DEV
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o444))
    kernel.mount(f"/proc/self/fd/{handle}", target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.restrict_mount(target, flags, below=True)
    os.close(handle)


def _step(name: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except OSError as error:
        raise Refused(name, error.errno or 0, str(error)) from error
