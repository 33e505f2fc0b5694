"""Memory that is free inside the process, returned to the system."""

import ctypes
from contextlib import suppress


def return_memory() -> None:
    """Slow for a large heap: called in a thread, after memory-intensive work."""
    # glibc returns by itself only what lies above all that is still in use.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
