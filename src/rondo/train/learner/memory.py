"""How the process gets its memory."""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Lets the C library reuse what large tensors gave back, instead of returning it and faulting it in again.

    A training step frees and asks for similar sizes over and over; on a CPU this is up to a third of a small model's
    step. In return the peak is up to 1.4 times what is held at once, since what is free between two tensors may fit
    neither of the next two. Says whether the C library can do it (glibc can).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
