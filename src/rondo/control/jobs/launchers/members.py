"""Every process of an attempt, found by the name of the attempt's report in its environment.

A process group would miss the ranks of PyTorch's elastic agent, which have sessions of their own, and it is unknown
once the shell that waits for the command was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

from rondo.jobs.attempt import VARIABLE

KILL_SECONDS = 5.0
_MARK = f"{VARIABLE}=".encode()


def members() -> dict[tuple[str, int], list[int]]:
    """Pids of all processes of attempts on this machine, by job and number."""
    found = defaultdict[tuple[str, int], list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name == str(os.getpid()):
            continue
        with contextlib.suppress(
            OSError, ValueError, IndexError
        ):  # ended, of another user, or not an attempt
            environment = (folder / "environ").read_bytes().split(b"\0")
            report = next((each for each in environment if each.startswith(_MARK)), b"")
            job, number = os.fsdecode(report).split("/")[-3:-1]
            found[job, int(number)].append(int(folder.name))
    return found


def kill_members(job: str, number: int) -> bool:
    """Kills each process of the attempt; whether all have ended."""
    deadline = time.monotonic() + KILL_SECONDS
    while pids := members().get((job, number)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
