"""Folder of an attempt, `RONDO_HOME/runs/JOB/NUMBER`: output, exit code, and a report of the job's process.

Files: `output.log`; `process` (pid and start time of the shell that waits for the command) or `begun` (start of a batch
script); `code` (exit code of the command);
`report.json`, written by the command itself: hash and steps of the job, or the error with which it ended.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.environ import minimal
from rondo.base.storage.files import atomic_write
from rondo.base.storage.home import home
from rondo.control.jobs.launchers.identity import boot
from rondo.jobs.attempt import VARIABLE, read_report

PASSED = (
    *(
        "RONDO_HOME",
        "RONDO_OPS",
        "RONDO_NATIVE",
        "RONDO_CPU",
        "RONDO_KERNELS",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
    ),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "WANDB_BASE_URL"),
    *("WANDB_MODE", "AWS_ENDPOINT_URL", "AWS_REGION"),
)
"""Variables of the gateway that jobs need; no keys."""
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
"""Keys of object stores, for exports of checkpoints by the gateway itself."""
SECRETS = ("HF_TOKEN", "HF_TOKEN_PATH", "WANDB_API_KEY", *STORE_KEYS)
"""Keys of other services, for the jobs of `gateway.jobs.secret_keys`."""
LAST_LINES = 20


@dataclass(frozen=True)
class AttemptFolder:
    path: Path

    @classmethod
    def of(cls, job: str, number: int) -> AttemptFolder:
        return cls(home() / "runs" / job / str(number))

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def report_file(self) -> Path:
        return self.path / "report.json"

    def report(self) -> dict[str, Any]:
        """`hash` and `steps`, or `error`; empty until the process has written it."""
        return read_report(self.report_file)

    @property
    def code(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / "code").read_text())
        return None

    def process(self) -> tuple[int, str] | None:
        """Pid and start time of the shell that waits for the command."""
        with contextlib.suppress(OSError, ValueError):
            pid, begun, _ = (self.path / "process").read_text().split()
            return int(pid), begun
        return None

    @property
    def of_this_boot(self) -> bool:
        """Whether the attempt was started by this machine, since its last start."""
        with contextlib.suppress(OSError, ValueError):
            return (self.path / "process").read_text().split()[2] == (boot() or "-")
        return True

    def keep_process(self, pid: int) -> None:
        """Records the shell. The time of the file is the start of the attempt."""
        atomic_write(self.path / "process", f"{pid} {_stat(pid)[1]} {boot() or '-'}\n")

    def wrote(self, file: Path) -> bool:
        """Whether the file was written since the start of the attempt, by the clock of the file system: the clocks of
        nodes may differ."""
        times = [mtime for name in ("process", "begun") if (mtime := _mtime(self.path / name)) is not None]
        written = _mtime(file)
        return bool(times) and written is not None and written > max(times)

    def last_lines(self) -> str:
        with contextlib.suppress(OSError), self.output.open("rb") as file:
            file.seek(max(self.output.stat().st_size - 8192, 0))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LAST_LINES:])
        return ""

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Environment of the job's process: no secret of the platform."""
        own = {VARIABLE: str(self.report_file), "PYTHONUNBUFFERED": "1"}
        return minimal(PASSED) | own | (extra or {})


def _mtime(file: Path) -> int | None:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return None


def is_alive(pid: int, begun: str) -> bool:
    """Whether the process exists and is the one that began then, not a later one with the same pid."""
    state, since = _stat(pid)
    return state not in "ZX" and since == begun


def _stat(pid: int) -> tuple[str, str]:
    """State of a process, and its start in clock ticks since the machine's start; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]


def remove_runs(job: str) -> None:
    shutil.rmtree(home() / "runs" / job, ignore_errors=True)
