"""Atomic exchange of two folders, so that one of them exists at any time."""

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, two: Path) -> None:
    """Swaps the folders; `two`'s old content is at `one` afterwards.

    Where the kernel or the file system cannot (no Linux, some network file systems), two renames do it: a
    process killed between them leaves both folders whole, with the old one under the temporary name.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise OSError(number, os.strerror(number), str(two))
    aside = one.with_name(one.name + ".old")
    os.rename(two, aside)
    os.rename(one, two)
    os.rename(aside, one)
