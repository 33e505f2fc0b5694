"""Memory of the processes of a local attempt, and its limit."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from rondo.base.storage.files import atomic_write
from rondo.control.jobs.launchers.folder import AttemptFolder

FILE, EXCEEDED = "memory", "exceeded"
PAGE = os.sysconf("SC_PAGE_SIZE")
UNRECLAIMABLE = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
"""Pages of files are not counted: the kernel can drop them."""
MIB = 1 << 20
FIRST_KILLED = "{ echo 500 > /proc/self/oom_score_adj; } 2> /dev/null\n"
"""Shell command: the kernel kills a job before the gateway and the engines when the machine has no memory left."""


def machine_memory() -> int:
    """MiB of this machine."""
    return PAGE * os.sysconf("SC_PHYS_PAGES") // MIB


def limit_memory(folder: AttemptFolder, mebibytes: int | None) -> None:
    if mebibytes:
        (folder.path / FILE).write_text(str(mebibytes))


def limit_of(folder: AttemptFolder) -> int | None:
    """MiB that the attempt may use."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder.path / FILE).read_text())
    return None


def used_memory(pids: Iterable[int], limit: int) -> int:
    """MiB of the processes, without pages of mapped files. Shared pages are divided among their users, which the kernel
    computes slowly: only where the sum of resident pages is above the limit."""
    pids = list(pids)
    resident = sum(map(_resident, pids)) // MIB
    return resident if resident <= limit else sum(map(_proportional, pids)) // MIB


def record_exceeded(folder: AttemptFolder, used: int, limit: int) -> None:
    text = f"it used {used} MiB of memory, and resources.memory is {limit}"
    atomic_write(folder.path / EXCEEDED, text)


def exceeded(folder: AttemptFolder) -> str:
    """Why the attempt was killed; empty if it stayed within its limit."""
    with contextlib.suppress(OSError):
        return (folder.path / EXCEEDED).read_text()
    return ""


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


def _proportional(pid: int) -> int:
    """Proportional set size; the resident one where the kernel has no smaps_rollup."""
    with contextlib.suppress(OSError):
        if found := UNRECLAIMABLE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text()):
            return sum(map(int, found)) * 1024
    return _resident(pid)
