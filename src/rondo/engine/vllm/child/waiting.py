"""Runs in vLLM's processes on a CPU: processes that wait for one another sleep instead of spinning.

vLLM's engine polls its worker's messages in a loop of `sched_yield`, which occupies a core while the worker computes:
one of two on a small machine. It is a vLLM plug-in, copied next to the others, and needs only Python and vLLM.
"""

from __future__ import annotations

import os
import time

SECONDS = 20e-6
"""Sleep time, about 100 us with the kernel's overhead."""


def rest() -> None:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.sched_yield = _sleep


def _sleep() -> None:
    time.sleep(SECONDS)
