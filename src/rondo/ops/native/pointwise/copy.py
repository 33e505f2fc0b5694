"""Copies of memory past the caches, for targets that are not read soon."""

from __future__ import annotations

import ctypes
from functools import cache

from rondo.ops.native.build.build import library


def copy_past_caches(target: int, source: int, nbytes: int) -> None:
    """Copies bytes between two addresses. Another thread sees them after its next synchronization with this one."""
    compiled = _library()
    if compiled is None:
        ctypes.memmove(target, source, nbytes)
    else:
        compiled.copy_past_caches(target, source, nbytes)


@cache
def _library() -> ctypes.CDLL | None:
    compiled = library("copy")
    if compiled is not None:
        compiled.copy_past_caches.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        compiled.copy_past_caches.restype = None
    return compiled
