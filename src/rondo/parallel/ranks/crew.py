"""Supervision of the ranks of a job from rendezvous to exit: a failure of one rank ends all of them, and the first rank
reports the reason.

A rank that fails reports it on the board and waits until the first rank has confirmed it. Then it exits, which breaks
the collectives in which other ranks may wait for it; they read the reason from the board.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from rondo.base.errors import RondoError, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.board import Failure, Heartbeat, RankStore, StoreLost, late
from rondo.parallel.ranks.mesh import dist, leave, meet, said
from rondo.parallel.ranks.world import World

log = get_logger(__name__)
T = TypeVar("T")

BEAT_SECONDS = 0.5
SILENT_SECONDS = 3.0
"""Seconds without a heartbeat after which a rank, or its machine, counts as dead."""
PARTING_SECONDS = 10.0
"""Seconds in which a rank must end by itself after it has learned of a failure."""
HEARD_SECONDS = 2.0
"""Seconds for which the first rank keeps its store after a failure: ranks that were killed never answer."""
PATIENCE = 5
"""Multiple of the second longest earlier duration of the same kind of work after which a rank counts as hung."""
DUMP_SECONDS = 2.0
RANK_FAILED, RANK_LOST = "rank_failed", "rank_lost"
"""Codes of errors of a weight push: another rank has raised an error, or has ended."""
INTERRUPTED = 130


class RankFailed(RondoError):
    """Another rank failed, or all ranks ended because of it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"rank {failure.rank} on {failure.host}: {failure.message}")
        self.exit_code = failure.exit_code


class RankSupervisor:
    """Supervisor of this rank; a job of one process needs none, and `RankSupervisor()` does nothing."""

    def __init__(
        self,
        world: World | None = None,
        board: RankStore | None = None,
        config: LayoutConfig | None = None,
        section: str = "train",
    ) -> None:
        """`section` of the settings has the layout, for error messages."""
        self.world = world or World()
        self.asked_to_stop = False
        self.interrupted = False
        """Whether the stop request is a Ctrl-C."""
        self._heeding = self._in_steps = False
        self._watch = _Watch(board, config or LayoutConfig(), section) if board else None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and reports to the user."""
        return self.world.first

    @property
    def host(self) -> str:
        return socket.gethostname()

    def doing(self, what: str) -> None:
        """Reports the current activity; called before any work that other ranks may have to wait for."""
        if self._watch:
            self._watch.doing(what)

    def on_hang(self, folder: Path, tell: Callable[[str], None]) -> None:
        """Sets the folder for the stacks of each rank after a hang and the callback that the first rank calls before
        all ranks end.
        """
        if self._watch:
            self._watch.folder, self._watch.tell = folder, tell

    def said_by_all(self, own: T) -> list[T]:
        return [own] if self._watch is None else said(own, None)

    def first_says(self, own: T) -> T:
        """The first rank's value, broadcast to all ranks."""
        if self._watch is None:
            return own
        found = [own]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    @contextlib.contextmanager
    def heeding(self) -> Iterator[None]:
        """Context in which a first Ctrl-C or a SIGTERM sets `asked_to_stop`, and a second Ctrl-C raises
        Aborted. A process without other ranks stops at once while it is not `stepping`, because it has
        nothing to finish. torchrun sends a SIGTERM after another rank has ended; then the next collective fails.
        """
        if self._heeding:
            yield
            return
        self._heeding = True
        try:
            among = self._watch is not None
            with _handling(self._stop, among, signal.SIGINT), _handling(self._stop, among):
                yield
        finally:
            self._heeding = False

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Context of steps and their checkpoints, which a stop request lets finish."""
        self._in_steps = True
        try:
            yield
        finally:
            self._in_steps = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.interrupted:
            raise Aborted
        self.asked_to_stop = True
        self.interrupted |= number == signal.SIGINT
        if self._watch is None and not self._in_steps:
            raise StoppedEarly
        if self.first:
            # A thread, because the interrupted code may be writing to the same stream.
            again = "; Ctrl-C again aborts at once" if self.interrupted else ""
            said = ("the job stops after this step and saves a checkpoint%s", again)
            threading.Thread(target=log.warning, args=said, daemon=True).start()

    def any_asked_to_stop(self) -> bool:
        """Whether any rank has a stop request. The result is equal on all ranks, which must all call this at the same
        step.
        """
        if self._watch is None:
            return self.asked_to_stop
        found = torch.tensor(int(self.asked_to_stop))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def explained(self, error: BaseException) -> BaseException:
        """The reason for which all ranks end after one of them has raised `error`; it is reported to the other
        ranks.
        """
        if self._watch is None or self._watch.failed or isinstance(error, SystemExit | Paused):
            return error
        return self._watch.explained(error)

    def said(self, why: BaseException) -> BaseException:
        """The exception to raise at the end: the first rank reports it to the user, in which case the other ranks exit
        silently.
        """
        return self._watch.said(why) if self._watch and self._watch.failed else why

    def close(self) -> None:
        if self._watch:
            self._watch.close()


@contextlib.contextmanager
def together(
    world: World, config: LayoutConfig, device: torch.device, section: str = "train"
) -> Iterator[RankSupervisor]:
    """Joins the other ranks, yields their supervisor, and leaves the process group at the end."""
    if world.size == 1:
        yield RankSupervisor()
        return
    meet(world, config.timeout, device, section)
    crew = RankSupervisor(world, RankStore(world), config, section)
    try:
        with _handling(_terminate, among=True):
            yield crew
    except Paused:
        leave()
        raise
    except BaseException as error:
        why = crew.explained(error)
        raise crew.said(why) from error
    finally:
        crew.close()
    leave()


@contextlib.contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None], among: bool, number: int = signal.SIGTERM
) -> Iterator[None]:
    """Sets a handler of a signal. After an error, the signal is ignored if there are other ranks: the process is about
    to end and to report the reason.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    after: Any = before
    try:
        yield
    except BaseException:
        after = signal.SIG_IGN if among else before
        raise
    finally:
        signal.signal(number, after)


class Paused(Exception):
    """All ranks have stopped after the same step because one of them had a stop request, and their state is saved."""

    def __init__(self, step: int, steps: int, *, interrupted: bool = False) -> None:
        done = f"step {step} of {steps} is saved" if step else "stopped before the first step"
        super().__init__(done)
        self.exit_code = INTERRUPTED if interrupted else 0


class StoppedEarly(KeyboardInterrupt):
    """A stop request outside of the steps of a job."""


class Aborted(KeyboardInterrupt):
    """A second Ctrl-C: the job ends without finishing its step or a running save."""


class Terminated(RondoError):
    exit_code = 143

    def __init__(self) -> None:
        super().__init__("terminated. The same command resumes from the last checkpoint.")


def _terminate(number: int, frame: object) -> None:
    raise Terminated


LEFT = "left"
"""Activity of a rank that has finished and sends no more heartbeats."""


@dataclass
class _Seen:
    beat: Heartbeat
    moved: float
    heard: float


def _kind(what: str) -> str:
    """Kind of work of an activity, without its step."""
    return what.rpartition(": ")[2]


class _Watch:
    """Watchdog thread, which sends this rank's heartbeats and checks that all ranks make progress."""

    def __init__(self, board: RankStore, config: LayoutConfig, section: str = "train") -> None:
        self._section = section
        self.folder: Path | None = None
        self.tell: Callable[[str], None] = lambda reason: None
        self._steps, self._what, self._since = 0, "start", time.monotonic()
        self._longest: dict[str, list[float]] = {}
        """The two longest durations of each kind of work; the first execution of a kind is not representative."""
        self._board, self._world, self._config = board, board.world, config
        self._seen: dict[int, _Seen] = {}
        self._count = 0
        self.failed: Failure | None = None
        self._closed = threading.Event()
        self._beat()
        dist.barrier()  # from here on every rank has sent a heartbeat
        self._thread = threading.Thread(target=self._run, name="rondo-watch", daemon=True)
        self._thread.start()

    def doing(self, what: str) -> None:
        now = time.monotonic()
        longest = self._longest.setdefault(_kind(self._what), [])
        insort(longest, now - self._since)
        del longest[:-2]
        self._steps, self._what, self._since = self._steps + 1, what, now

    def explained(self, error: BaseException) -> BaseException:
        try:
            failure = self._board.fail(self._failure_of(error))
            if self._world.first:
                self._board.hear()  # another failed rank need not report: the error that the first rank raises is shown
        except StoreLost:
            return _first_is_gone(error)
        self.failed = failure
        if failure.rank != self._world.rank:
            return RankFailed(failure)
        return Unavailable(failure.message) if timed_out(error) else error

    def said(self, why: BaseException) -> BaseException:
        if self._world.first:
            self._board.wait_parted(HEARD_SECONDS)
            return why
        if not self._board.wait_heard(PARTING_SECONDS):
            return why
        return SystemExit(getattr(why, "exit_code", 1))

    def close(self) -> None:
        self._closed.set()
        self._thread.join(PARTING_SECONDS)
        with contextlib.suppress(StoreLost):
            self._what = LEFT
            self._beat()

    def _failure_of(self, error: BaseException) -> Failure:
        """The failure to report for `error`. An error of a collective means that another rank has ended: its own
        failure takes precedence, or else the rank whose heartbeat has stopped is the failed one.
        """
        if lost_another(error) or isinstance(error, Terminated):
            deadline = time.monotonic() + SILENT_SECONDS
            before = self._board.beats()
            while time.monotonic() < deadline:
                if failure := self._board.failure():
                    return failure
                time.sleep(BEAT_SECONDS / 5)
            now = self._board.beats()
            for old, new in zip(before, now, strict=True):
                if old.count == new.count and new.rank != self._world.rank:
                    return Failure(
                        new.rank, new.host, f"it was lost while others waited for it ({new.what})", 1
                    )
        if timed_out(error):
            return self._late()
        message = error.message if isinstance(error, RondoError) else repr(error)
        code = error.exit_code if isinstance(error, RondoError) else 1
        if isinstance(error, KeyboardInterrupt):
            message, code = "interrupted", INTERRUPTED
        return Failure(self._world.rank, self._board.host, message, code)

    def _late(self) -> Failure:
        """The straggler that other ranks have waited for, by the last activity of each; if all ranks are at the same
        activity, none is to blame.
        """
        beats = self._board.beats()
        who = late(beats)
        what = f"others have waited {self._config.timeout:.0f} s for it ({who[0].what})"
        if len(who) == len(beats):
            what = f"a rank has waited {self._config.timeout:.0f} s for others ({who[0].what}, as all are)"
        return Failure(who[0].rank, who[0].host, what + _may_take(self._section, "timeout"), 1)

    def _run(self) -> None:
        try:
            while not self._closed.wait(BEAT_SECONDS):
                self._beat()
                failure = self.failed or self._board.failure()
                if failure is None and self._world.first:
                    failure = self._look()
                if failure:
                    self._end(failure)
        except StoreLost:
            if not self._closed.wait(PARTING_SECONDS):
                self._exit("error: the first rank is gone, and with it what the ranks know of each other.", 1)

    def _end(self, failure: Failure) -> None:
        """Ends this process unless it ends in time by itself. The training code learns of the failure when the failed
        rank exits, which waits for confirmation by the first rank. A collective that never returns must not keep this
        process alive.
        """
        if failure.hang:
            self._dump()
        if self._world.first:
            self._board.hear()
        if not self._closed.wait(DUMP_SECONDS if failure.hang else PARTING_SECONDS):
            words = str(RankFailed(failure))
            if self._world.first:
                self.tell(words)
            self._exit(f"error: {words}" if self._world.first else "", failure.exit_code)

    def _look(self) -> Failure | None:
        """Detects hung and silent ranks. The time limit follows the longest durations of earlier work of the same
        kind.
        """
        now, beats = time.monotonic(), [beat for beat in self._board.beats() if beat.what != LEFT]
        if len(beats) == 1:  # the first rank alone writes the final output of the job
            return None
        self._seen = {beat.rank: self._seen[beat.rank] for beat in beats if beat.rank in self._seen}
        for beat in beats:
            seen = self._seen.setdefault(beat.rank, _Seen(beat, now, now))
            if beat.steps != seen.beat.steps:
                seen.moved = now
            if beat.count != seen.beat.count:
                seen.heard = now
            seen.beat = beat
        known = self._longest.get(_kind(self._what), [])
        setting = "timeout" if len(known) < 2 else "stall"
        limit = self._config.timeout if len(known) < 2 else max(self._config.stall, PATIENCE * known[0])
        silent = [
            s.beat for s in self._seen.values() if now - s.heard > max(self._config.stall, SILENT_SECONDS)
        ]
        waited = now - max(seen.moved for seen in self._seen.values())
        if not silent and waited <= limit:
            return None
        who = (silent or late(beats))[0]
        others = next((beat for beat in beats if beat.steps > who.steps), None)
        waits = f", while others wait at {others.what}" if others else ", as all ranks are"
        if silent:
            message = (
                f"it has not been heard of for {now - self._seen[who.rank].heard:.0f} s (last: {who.what})"
            )
        else:
            message = f"no rank has got on for {waited:.0f} s: this one is at {who.what}{waits}"
            message += _may_take(self._section, setting)
        where = f". What each rank was at is in {self.folder}" if self.folder else ""
        return self._board.fail(Failure(who.rank, who.host, message + where, 1, hang=True))

    def _dump(self) -> None:
        """Writes the stack of each thread and the collectives in torch's flight recorder."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"rank_{self._world.rank}.stacks").open("w") as file:
                faulthandler.dump_traceback(file)
            c10d: Any = torch._C._distributed_c10d
            record = c10d._dump_fr_trace_json()
            (self.folder / f"rank_{self._world.rank}.json").write_bytes(record)
        except Exception as error:  # the process must end even so
            log.warning("what rank %d was at could not be written: %r", self._world.rank, error)

    def _exit(self, words: str, code: int) -> None:
        if words:
            print(words, file=sys.stderr, flush=True)
        os._exit(code or 1)

    def _beat(self) -> None:
        self._count += 1
        self._board.beat(Heartbeat(self._world.rank, self._board.host, self._steps, self._what, self._count))


def _may_take(section: str, setting: str) -> str:
    return f". If that takes so long, raise {section}.layout.{setting}"


def timed_out(error: BaseException) -> bool:
    """Whether a collective, or the store, raised `error` because other ranks did not arrive in time."""
    found = _of_collective(error)
    return found is not None and re.search("timed? ?out", str(found), re.IGNORECASE) is not None


def lost_another(error: BaseException) -> bool:
    """Whether `error` was raised because another rank has failed or ended."""
    words = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    found = _of_collective(error)
    failed = isinstance(error, RondoError) and error.code == RANK_FAILED
    return failed or (found is not None and any(word in str(found) for word in words))


def _of_collective(error: BaseException) -> RuntimeError | None:
    """The error of a collective, also if it is the cause of a weight push that has lost a rank."""
    found = error.__cause__ if isinstance(error, RondoError) and error.code == RANK_LOST else error
    return found if isinstance(found, RuntimeError) else None


def _first_is_gone(error: BaseException) -> BaseException:
    if isinstance(error, RondoError):
        return error
    return Unavailable(
        "The first rank has ended; the cause is in its own output. The same command resumes from the last checkpoint."
    )
