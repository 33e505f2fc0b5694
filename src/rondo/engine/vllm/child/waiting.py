"""In vLLM's processes on a CPU: those that wait for one another sleep meanwhile.

vLLM's engine looks for its worker's messages in a loop of `sched_yield`, which takes a core as long as the worker
computes: one of two, on a small machine. A plug-in of vLLM's, copied beside the others; it needs Python and vLLM alone.
"""

from __future__ import annotations

import os
import time

SECONDS = 20e-6
"""With what the kernel adds to it, some 100 us."""


def rest() -> None:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.sched_yield = _sleep


def _sleep() -> None:
    time.sleep(SECONDS)
