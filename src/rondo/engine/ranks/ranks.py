"""Processes of the other ranks: start, communication and failure detection.

Each process has a channel to this process and the read end of a pipe that is never written to. The pipe closes when
this process ends for any reason, and the other processes then exit.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import RondoError, Unavailable
from rondo.base.process import exit_reason, kill, python_call, start
from rondo.base.telemetry.log import get_logger
from rondo.engine.config import EngineConfig
from rondo.engine.ranks.channel import Channel

log = get_logger("rondo.engine")

START_SECONDS = 1800.0
"""Timeout for a rank's imports, and for loading its slice."""
END_SECONDS = 5.0
VERDICT_SECONDS = 2.0
READ_SECONDS = 300.0
"""Timeout for a rank to read an adapter."""


@dataclass(frozen=True)
class RankSetup:
    """Configuration sent to a rank at start; `meeting` is the rendezvous file of the ranks."""

    rank: int
    folder: Path
    config: EngineConfig
    device: str
    eos_ids: tuple[int, ...] | None
    weight_version: int
    meeting: Path
    seconds: float


@dataclass(frozen=True)
class Report:
    """Status report of a rank: the next startup stage, or the error that ended it."""

    failed: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class AdapterRead:
    """Result of reading an adapter: a hash of its content, or the error."""

    rank: int
    number: int
    content: str = ""
    refused: str = ""


class RankProcess:
    """Process of another rank."""

    def __init__(self, rank: int, lifeline: int, meeting: Path) -> None:
        self.rank = rank
        self.stage = 0
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        arguments = [str(theirs.fileno()), str(lifeline), str(os.getpid()), str(meeting)]
        self.process = start(
            python_call("rondo.engine.ranks.follower:main", *arguments), pass_fds=(theirs.fileno(), lifeline)
        )
        theirs.close()

    def end(self) -> str:
        """Description of how the process ended; empty while it runs."""
        code = self.process.poll()
        return "" if code is None else exit_reason(code)


class Ranks:
    def __init__(self, size: int, seconds: float) -> None:
        """Starts the processes, which import while this process continues. `seconds` is the timeout of one rank waiting
        for another within a step."""
        self.size = size
        self.seconds = seconds
        self.lost: RondoError | None = None
        self.on_lost: list[Callable[[RondoError], None]] = []
        self.meeting = Path(tempfile.mkdtemp(prefix="rondo-ranks-")) / "meeting"
        self.others: list[RankProcess] = []
        self._answers: dict[int, list[AdapterRead]] = defaultdict(list)
        self._changed = threading.Condition()
        self._closing = threading.Lock()
        self._closed = False
        theirs, self._lifeline = os.pipe()
        try:
            self.others += (RankProcess(rank, theirs, self.meeting) for rank in range(1, size))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs)
        threading.Thread(target=self._watch, name="rondo-ranks", daemon=True).start()

    def expect(self, stage: int) -> None:
        """Waits until every rank has reported `stage` stages."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self.lost is not None or all(other.stage >= stage for other in self.others),
                START_SECONDS,
            )
        self.check()
        if not there:
            raise Unavailable(f"a rank did not start within {START_SECONDS:.0f} seconds. Start again.")

    def send(self, message: object) -> None:
        for other in self.others:
            other.channel.send(message, self.seconds)

    def answers(self, number: int) -> list[AdapterRead]:
        """Waits for every rank's result of reading the adapter with this number."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.lost is not None or self._closed or len(self._answers[number]) == len(self.others)
                ),
                READ_SECONDS,
            )
            found = self._answers.pop(number)
        self.check()
        if self._closed:
            raise Unavailable("the engine is shutting down.", code="shutting_down")
        if len(found) < len(self.others):
            raise Unavailable(
                f"a rank did not read the adapter within {READ_SECONDS:.0f} seconds. Try again later."
            )
        return sorted(found, key=lambda answer: answer.rank)

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def end_after_failure(self, cause: BaseException) -> RondoError:
        """Ends the ranks after a failed collective operation, since they are no longer in sync. Returns an error with
        the best available reason."""
        with self._changed:
            # The failed rank is identified shortly after its connections break.
            self._changed.wait_for(lambda: self.lost is not None, VERDICT_SECONDS)
        said = str(cause).partition("\n")[0] or type(cause).__name__
        if "timed out" in said.lower():
            said = f"a rank did not answer within {self.seconds:.0f} seconds"
        return self._lose(f"a step on {self.size} ranks was broken off: {said}. Restart the engine.")

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        with self._changed:
            self._changed.notify_all()
        os.close(self._lifeline)
        deadline = time.monotonic() + END_SECONDS
        for other in self.others:
            try:
                other.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill(other.process)
            other.channel.close()
        shutil.rmtree(self.meeting.parent, ignore_errors=True)

    def _watch(self) -> None:
        """Reads the reports of the ranks until one of them fails."""
        with selectors.DefaultSelector() as selector:
            for other in self.others:
                selector.register(other.channel, selectors.EVENT_READ, other)
            while True:
                for key, _ in selector.select():
                    failure = self._read(key.data)
                    if self._closed:
                        return
                    if failure:
                        self._lose(failure)
                        return

    def _read(self, other: RankProcess) -> str:
        """Receives one report; returns the reason if the rank has failed, else ""."""
        try:
            report = other.channel.receive()
        except (EOFError, OSError):
            return self._reason(other, "is gone")
        if isinstance(report, AdapterRead):
            with self._changed:
                self._answers[report.number].append(report)
                self._changed.notify_all()
            return ""
        if report.failed:
            log.error("a rank failed", extra={"rank": other.rank, "traceback": report.traceback})
            return self._reason(other, f"failed: {report.failed}")
        with self._changed:
            other.stage += 1
            self._changed.notify_all()
        return ""

    def _reason(self, other: RankProcess, said: str) -> str:
        # A killed rank makes others fail; the report names the killed one. Its exit takes a moment to be
        # visible.
        time.sleep(0.2)
        ends = {each: each.end() for each in self.others}
        killed = next((each for each in self.others if ends[each].startswith("was killed")), None)
        if killed is not None:
            other, said = killed, ends[killed]
        elif said == "is gone":
            said = ends[other] or said
        who = f"rank {other.rank} of {self.size} (process {other.process.pid})"
        return f"{who} {said}. The engine cannot go on without it: restart it."

    def _lose(self, reason: str) -> RondoError:
        """Records the first reason, notifies listeners and closes the ranks."""
        with self._changed:
            if self.lost is not None:
                return self.lost
            self.lost = Unavailable(reason, code="engine_failed")
            self._changed.notify_all()
        try:
            self._notify(self.lost)
        finally:
            self.close()
        return self.lost

    def _notify(self, lost: RondoError) -> None:
        for listener in self.on_lost:
            try:
                listener(lost)
            except Exception:
                log.exception("somebody could not be told that a rank is lost")
