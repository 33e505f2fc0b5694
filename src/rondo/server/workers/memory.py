"""Memory that is free inside the process, returned to the system."""

import ctypes
from contextlib import suppress


def return_memory() -> None:
    """Slow where there is much to look through: called in a thread, after what took much memory."""
    # glibc returns by itself only what lies above all that is still in use.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
