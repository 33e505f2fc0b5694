"""Seccomp allow-list of a program's system calls.

The filter is the second barrier. Namespaces hide files, network and processes; the filter removes system calls that
could be used against the kernel itself, including those for new namespaces, sockets or programs.
"""

import errno
import struct

from . import numbers
from .kernel import NEW_ANYTHING

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE = _ERRNO | errno.EPERM
_UNKNOWN = _ERRNO | errno.ENOSYS

_X32 = 0x40000000
"""First number of x86-64's second set of calls (x32), which no program needs."""
_NEWER = 424
"""From this call on, C libraries fall back to an older call after the error "not implemented"."""

_AF_UNIX = 1
_SIGCHLD = 17
_PRCTL = (15, 16, 0x53564D41)
"""Options for a thread's name, and for the name of a mapping."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Requests: is it a terminal, window size, readable bytes, blocking mode, close-on-exec."""
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""Commands: copies, flags and locks of descriptors, the size of a pipe; no leases, no larger pipes."""


def program() -> bytes:
    """The filter as instructions of classic BPF."""
    return b"".join(
        [
            _code(_LOAD, _ARCH),
            _code(_EQUAL, numbers.AUDIT_ARCH, 1, 0),
            _code(_RETURN, _KILL),
            _code(_LOAD, _NUMBER),
            _code(_AT_LEAST, _X32, 0, 1),
            _code(_RETURN, _KILL),
            *(_code(_EQUAL, number, 0, 1) + _code(_RETURN, _ALLOW) for number in numbers.allowed()),
            # Threads and processes are allowed, but no new namespaces. A filter cannot inspect the arguments of
            # `clone3`, so that call is refused.
            _code(_EQUAL, numbers.CLONE, 0, 4),
            _code(_LOAD, _FIRST_ARGUMENT),
            _code(_ANY_BIT, NEW_ANYTHING, 0, 1),
            _code(_RETURN, _REFUSE),
            _code(_RETURN, _ALLOW),
            # The CPU time of children is lost if their parent ignores SIGCHLD.
            _code(_EQUAL, numbers.SIGACTION, 0, 4),
            _code(_LOAD, _FIRST_ARGUMENT),
            _code(_EQUAL, _SIGCHLD, 0, 1),
            _code(_RETURN, _REFUSE),
            _code(_RETURN, _ALLOW),
            _first_is(numbers.SOCKETPAIR, (_AF_UNIX,)),
            _first_is(numbers.PRCTL, _PRCTL),
            _first_is(numbers.IOCTL, _IOCTL, argument=_FIRST_ARGUMENT + 8),
            _first_is(numbers.FCNTL, _FCNTL, argument=_FIRST_ARGUMENT + 8),
            _code(_AT_LEAST, _NEWER, 0, 1),
            _code(_RETURN, _UNKNOWN),
            _code(_RETURN, _REFUSE),
        ]
    )


def _first_is(number: int, values: tuple[int, ...], argument: int = _FIRST_ARGUMENT) -> bytes:
    """The call `number` is allowed if the lower half of that argument is one of `values`, else refused."""
    tests = b"".join(_code(_EQUAL, value, 0, 1) + _code(_RETURN, _ALLOW) for value in values)
    return (
        _code(_EQUAL, number, 0, 2 * len(values) + 2)
        + _code(_LOAD, argument)
        + tests
        + _code(_RETURN, _REFUSE)
    )


def _code(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
