"""One supervised process: start, exit, back-off, restart."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from rondo.base.errors import NotFound
from rondo.base.process import exit_reason, kill, start
from rondo.base.telemetry.log import get_logger
from rondo.supervisor.config import UpConfig
from rondo.supervisor.logs import RotatingLog, log_file, read_log

log = get_logger("rondo.supervisor")

STABLE_SECONDS = 60.0
"""A part that ran so long has no failures in a row."""
PERMANENT = frozenset([2, 3, 4])
"""Exit codes of wrong settings, unusable models and missing models: a restart would end in the same way."""
CHUNK = 64 << 10
LAST_BYTES, LONGEST_ERROR = 16 << 10, 500


@dataclass
class Part:
    """A process with its command, and its state for the state file."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    url: str = ""
    model: str = ""
    restarted: bool = True
    """Whether the process is started again after it ended."""
    state: str = "starting"
    """starting, running, restarting, failed or stopped"""
    pid: int | None = None
    since: float = 0.0
    restarts: int = 0
    ended: str = ""
    """How the process ended most recently."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def begin(self, config: UpConfig, changed: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(config, changed), name=self.name, daemon=True)
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Asks the process to end, waits, and kills it if it has not ended."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive() and process is not None:
            log.warning("part did not end in time and is killed", extra={"part": self.name})
            kill(process)
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the process runs or is about to start."""
        running = self._thread is not None and self._thread.is_alive()
        return running and (self.pid is not None or self.state == "starting")

    def as_dict(self) -> dict[str, object]:
        names = ("name", "url", "model", "state", "pid", "since", "restarts", "ended")
        return {name: getattr(self, name) for name in names}

    def _run(self, config: UpConfig, changed: Callable[[], None]) -> None:
        output = RotatingLog(log_file(self.name), config.log_bytes, config.log_files)
        failures = 0
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                code = self._run_once(output, changed)
                if self._stopping.is_set() or not self.restarted or self._gives_up(code):
                    break
                failures = 1 if time.monotonic() - begun > STABLE_SECONDS else failures + 1
                pause = min(config.restart_seconds * 2 ** (failures - 1), config.longest_restart_seconds)
                self._restart_after(pause, changed)
        finally:
            output.close()
            if self.state != "failed":
                self.state = "stopped"
            changed()

    def _run_once(self, output: RotatingLog, changed: Callable[[], None]) -> int:
        # The kernel kills the child when this thread ends, and so with the supervisor.
        process = start(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env, end_with_parent=True
        )
        self._process, self.pid, self.state, self.since = process, process.pid, "running", time.time()
        changed()
        if self._stopping.is_set():  # since before the process existed
            process.terminate()
        assert process.stdout is not None
        pump = threading.Thread(target=_pump, args=(process.stdout, output), daemon=True)
        pump.start()
        code = process.wait()
        kill(process)  # what it started, so that the output ends
        pump.join()
        process.stdout.close()
        self.pid, self.ended = None, exit_reason(code)
        return code

    def _gives_up(self, code: int) -> bool:
        if code not in PERMANENT:
            return False
        self.state = "failed"
        log.error(
            f"part {self.name} {self.ended} and is not restarted: see `rondo logs {self.name}`",
            extra={"part": self.name},
        )
        return True

    def _restart_after(self, seconds: float, changed: Callable[[], None]) -> None:
        self.state = "restarting"
        self.restarts += 1
        log.warning(
            f"part {self.name} {self.ended}", extra={"part": self.name, "restart_in_seconds": seconds}
        )
        changed()
        self._stopping.wait(seconds)


def last_error(part: str) -> str:
    """The latest line of a part's log that states an error, as a part of a message; empty if there is none."""
    try:
        lines = read_log(part, None, LAST_BYTES).data.decode(errors="replace").splitlines()
    except NotFound:
        return ""
    found = next((line for line in reversed(lines) if "error" in line.lower()), "")
    return f"{found.strip()[:LONGEST_ERROR].rstrip('.')}. " if found else ""


def _pump(source: IO[bytes], output: RotatingLog) -> None:
    while data := source.read1(CHUNK):  # type: ignore[attr-defined]
        output.write(data)
