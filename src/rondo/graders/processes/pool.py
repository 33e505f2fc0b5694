"""Process pool for graders that compute: a hung call is killed and blocks no other grader.

A time limit on a coroutine applies only where it awaits. A function that computes, or calls a library that does,
therefore runs in another process: `await pool.call("package.module:function", text, seconds=5)`. Its arguments and
return value are JSON. A process that times out or dies is replaced; the call raises `TimeoutError` or `Unavailable`. A
process that was killed from outside, for example by the kernel's OOM killer, is not the call's fault: the call is
retried once.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rondo.base import errors
from rondo.base.environ import minimal
from rondo.base.errors import RondoError, Unavailable
from rondo.base.process import exit_reason, last_line, start
from rondo.base.telemetry.metrics import counter
from rondo.graders.turns import in_turn

SECONDS = 10.0
"""Default time limit of a function. The time starts when the function does; queueing does not count."""
START_SECONDS = 60.0
"""Limit for the start of a process and the import of the function, on a busy machine."""
MEMORY_BYTES = 2 << 30
CALLS = 2000
"""Calls after which a process is replaced, because libraries accumulate caches."""
ENDING_SECONDS = 1.0
"""Grace period for a process that has closed its output."""
LONGEST = 64 << 20
"""Maximum size of an answer in bytes."""

_lost = counter("grader_workers_lost", "Grader processes that were killed or died, by reason.", ("reason",))


class GraderFailed(RondoError):
    """Exception of a function in the pool, with its name and message."""


class Killed(Unavailable):
    """The process received a SIGKILL that the pool did not send."""


class GraderPool:
    """At most `workers` processes, started on demand. Safe from any thread and event loop."""

    def __init__(self, workers: int | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        self.workers = workers or max(len(os.sched_getaffinity(0)), 1)
        self._memory = memory_bytes
        self._threads = ThreadPoolExecutor(self.workers, "grader")  # each holds one process at a time
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._closed = False

    async def call(
        self, function: str, *arguments: Any, seconds: float = SECONDS, env: Mapping[str, str] | None = None
    ) -> Any:
        """The return value of `function` (`module:name`). Its process has a minimal environment, plus the variables in
        `env` during the call."""
        question = json.dumps([function, arguments, seconds, dict(env or {})]).encode() + b"\n"
        return await in_turn(self._threads, partial(self._do, function, question, seconds))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            workers, self._idle = list(self._all), []
        for worker in workers:
            worker.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _do(self, function: str, question: bytes, seconds: float, begin: Callable[[], None]) -> Any:
        try:
            answer = self._ask(function, question, seconds, begin)
        except Killed:
            answer = self._ask(function, question, seconds, begin)
        if "error" in answer:
            raise _error(function, *answer["error"])
        return answer["value"]

    def _ask(
        self, function: str, question: bytes, seconds: float, begin: Callable[[], None]
    ) -> dict[str, Any]:
        with self._worker() as worker:
            return worker.ask(function, question, seconds, begin)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._lock:
            if self._closed:
                raise Unavailable("the graders' processes are closed.")
            worker = self._idle.pop() if self._idle else None
            if worker is not None and not worker.alive():
                self._all.discard(worker)
                worker.end()
                _lost.labels("idle").inc()
                worker = None
            if worker is None:
                worker = _Worker(self._memory)
                self._all.add(worker)
        try:
            yield worker
        finally:
            with self._lock:
                keep = worker.fit and not self._closed
                if keep:
                    self._idle.append(worker)
                else:
                    self._all.discard(worker)
            if not keep:
                worker.end()


class _Worker:
    def __init__(self, memory_bytes: int) -> None:
        self.fit = True
        self._calls = 0
        # One thread per process: there are as many workers as cores.
        self._process = start(
            [sys.executable, "-m", "rondo.graders.processes.worker", str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**minimal(), "OMP_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, function: str, question: bytes, seconds: float, begin: Callable[[], None]
    ) -> dict[str, Any]:
        """Used by one thread at a time. A process with a missing or malformed answer is not reused."""
        self._calls += 1
        self._say(question, function)
        begin()
        line, late = self._hear(seconds)
        try:
            answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:
            answer = {}
        self.fit = bool(answer) and not late and self._calls < CALLS and not _out_of_memory(answer)
        if answer:
            return answer
        if late:
            _lost.labels("late").inc()
            raise TimeoutError(f"{function} took more than {seconds:g} s")
        _lost.labels("died").inc()
        raise self._ended(f"the process that computed {function}")

    def end(self) -> None:
        self.fit = False
        process = self._process
        self._kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(
                    OSError, ValueError
                ):  # the rest of the request has no reader any more
                    pipe.close()

    def _say(self, question: bytes, function: str) -> None:
        assert self._process.stdin is not None
        with self._limit(START_SECONDS) as late:
            with contextlib.suppress(BrokenPipeError):  # the process has died, hence the missing answer
                self._process.stdin.write(question)
                self._process.stdin.flush()
            line = self._read()
        if line != b"begun\n":
            self.fit = False
            _lost.labels("start").inc()
            if late.is_set():
                raise Unavailable(f"a process for {function} did not start within {START_SECONDS:g} s.")
            raise self._ended(f"a process for {function} did not start: it")

    def _hear(self, seconds: float) -> tuple[bytes, bool]:
        with self._limit(seconds) as late:
            line = self._read()
        return line, late.is_set()

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline(LONGEST)

    @contextlib.contextmanager
    def _limit(self, seconds: float) -> Iterator[threading.Event]:
        """Kills the process at the deadline, which ends every read from it and write to it."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def _ended(self, who: str) -> Unavailable:
        by_us = False
        try:
            code = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # its output is malformed, and it does not exit
            by_us = True
            self._kill()
            code = self._process.wait()
        assert self._process.stderr is not None
        said = last_line(self._process.stderr.read(1 << 16), 300)
        kind = Killed if code == -signal.SIGKILL and not by_us else Unavailable
        return kind(f"{who} {exit_reason(code)}{said and f' ({said})'}.")

    def _kill(self) -> None:
        """Kills the process with its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _out_of_memory(answer: dict[str, Any]) -> bool:
    return "error" in answer and answer["error"][0] == "MemoryError"


def _error(function: str, kind: str, message: str, param: str | None) -> Exception:
    """A `RondoError` is restored with its type, any other exception as its message."""
    found = getattr(errors, kind, None)
    if kind == "TimeoutError":
        return TimeoutError(message)
    if isinstance(found, type) and issubclass(found, RondoError):
        error = RondoError(message, param=param)
        error.__class__ = found
        return error
    return GraderFailed(f"{function} raised {kind}: {message}")


_shared: GraderPool | None = None
_making = threading.Lock()


def shared() -> GraderPool:
    """The pool of this process."""
    global _shared
    with _making:
        if _shared is None:
            _shared = GraderPool()
        return _shared


async def call(
    function: str, *arguments: Any, seconds: float = SECONDS, env: Mapping[str, str] | None = None
) -> Any:
    """`GraderPool.call` of the shared pool."""
    return await shared().call(function, *arguments, seconds=seconds, env=env)


def _forget() -> None:
    """Runs in a forked child: the processes, their pipes and the threads belong to the parent."""
    global _shared, _making
    _shared, _making = None, threading.Lock()


def _close() -> None:
    if _shared is not None:
        _shared.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
