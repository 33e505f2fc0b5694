"""Pool of warm workers with a queue."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rondo.base.errors import ConfigError
from rondo.base.telemetry.metrics import counter
from rondo.graders.sandbox.limits import SandboxLimits
from rondo.graders.sandbox.requests import Serve, run_grader
from rondo.graders.sandbox.runs import Exam, SandboxRun, Verdict, run_exam, run_script
from rondo.graders.sandbox.worker import SandboxWorker, WorkerEnded, WorkerLost

_lost = counter("sandbox_workers_lost", "Sandbox workers that ended or did not respond, and were replaced.")

T = TypeVar("T")


class Sandbox:
    """Runs untrusted programs. Safe to call from several threads; the number of workers bounds concurrent programs."""

    def __init__(self, workers: int | None = None, packages: Sequence[str | Path] = ()) -> None:
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, not {self.workers}.", param="workers")
        self._packages = [str(Path(package).absolute()) for package in packages]
        for package in self._packages:
            if not os.path.isdir(package):
                raise ConfigError(f"packages: there is no folder {package}.", param="packages")
        self._start_anew()
        _all.add(self)

    def run(
        self, program: str, given: bytes = b"", limits: SandboxLimits | None = None, call: bytes | None = None
    ) -> SandboxRun:
        """Runs a script with `given` as its standard input, or with `call` one of its functions."""
        return self._with_worker(
            lambda worker: run_script(worker, program, given, limits or SandboxLimits(), call)
        )

    def grade(self, program: str, given: bytes, limits: SandboxLimits, serve: Serve) -> SandboxRun:
        """Runs a script that may request runs of other programs from `serve`."""
        return self._with_worker(lambda worker: run_grader(worker, program, given, limits, serve))

    def examine(self, program: str, exam: Exam, limits: SandboxLimits | None = None) -> Verdict:
        return self._with_worker(lambda worker: run_exam(worker, program, exam, limits or SandboxLimits()))

    def close(self) -> None:
        """Ends the idle workers; busy workers end with their program."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            self._closed = True
        for worker in idle:
            worker.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _with_worker(self, action: Callable[[SandboxWorker], T]) -> T:
        """Retries once with another worker if the first one was killed, which is not the program's fault."""
        try:
            with self._worker() as worker:
                return action(worker)
        except WorkerEnded:
            with self._worker() as worker:
                return action(worker)

    @contextmanager
    def _worker(self) -> Iterator[SandboxWorker]:
        with self._free:
            worker = self._take()
            try:
                worker = worker or SandboxWorker(self._packages)
                yield worker
            except BaseException as error:
                # After any error, its cages may still run and its next messages may belong to this program.
                if worker is not None:
                    worker.close()
                if isinstance(error, WorkerLost):
                    _lost.inc()
                raise
            self._give_back(worker)

    def _take(self) -> SandboxWorker | None:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None or worker.alive():
                return worker
            worker.close()  # killed from outside while it was idle
            _lost.inc()

    def _give_back(self, worker: SandboxWorker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.close()

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self.workers)
        self._idle: list[SandboxWorker] = []
        self._closed = False


def _close_all() -> None:
    for sandbox in list(_all):
        sandbox.close()


def _forget_all() -> None:
    """Runs in a forked child: the workers belong to the parent."""
    for sandbox in list(_all):
        for worker in sandbox._idle:
            worker.leave()
        sandbox._start_anew()


_all: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
