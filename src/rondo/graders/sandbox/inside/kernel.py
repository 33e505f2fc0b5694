"""The system calls that Python has no functions for, by ctypes."""

import ctypes
import os
import struct

from . import numbers

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NEW_ANYTHING = 0x7E020000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
READ_ONLY, NO_SUID, NO_DEV = 1, 2, 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 4, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _checked("unshare", _libc.unshare(flags))


def setns(handle: int, kind: int) -> None:
    _checked("setns", _libc.setns(handle, kind))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = None if kind is None else kind.encode()
    done = _libc.mount(
        source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(f"mount {kind or source} on {target}", done)


def restrict_mount(target: str, flags: int, *, below: bool) -> None:
    """Adds flags to a mount, and to the mounts `below` it; existing flags remain."""
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    done = _libc.syscall(
        ctypes.c_long(numbers.MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE if below else 0),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _checked(f"mount_setattr {target}", done)


def make_root(folder: str) -> None:
    """Makes `folder`, a mount, the root and unmounts everything else."""
    os.chdir(folder)
    _checked("pivot_root", _libc.syscall(ctypes.c_long(numbers.PIVOT_ROOT), b".", b"."))
    _checked("umount the old root", _libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def prctl(option: int, argument: int = 0) -> None:
    done = _libc.prctl(option, *(ctypes.c_ulong(each) for each in (argument, 0, 0, 0)))
    _checked(f"prctl {option}", done)


def drop_capabilities() -> None:
    """Drops all capabilities permanently, including capabilities that an executable file could restore."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # past the last capability of this kernel
            break
    prctl(PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked("capset", _libc.capset(header, bytes(24)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Installs `program`, instructions of 8 bytes each, as the filter of this process and all its descendants."""
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    _checked(
        "seccomp",
        _libc.prctl(
            PR_SET_SECCOMP,
            ctypes.c_ulong(_SECCOMP_MODE_FILTER),
            described,
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        ),
    )


def _checked(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
