"""A pool of worker processes with one task each at a time. A dead worker is replaced; a task that kills several is an
error."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base import errors
from rondo.base.errors import RondoError, Unavailable
from rondo.base.process import exit_reason, kill, last_line
from rondo.base.process import start as start_process
from rondo.base.telemetry.log import get_logger

log = get_logger(__name__)

ATTEMPTS = 3
"""Number of workers that may die on one task."""
SILENT_SECONDS = 60.0
"""Seconds without a message after which a worker is killed; workers report every half second."""
START_SECONDS = 120.0
STDERR_SHOWN = 500


@dataclass(frozen=True)
class PoolTask:
    number: int
    name: str
    """Name of the task in errors."""
    told: Mapping[str, Any]


OnEvent = Callable[[PoolTask, str, Any], None]
"""Callback for a worker's messages about its task: `now` and `done`."""


def run_tasks(
    module: str, setup: Mapping[str, Any], tasks: Sequence[PoolTask], workers: int, on_event: OnEvent
) -> None:
    """Runs all tasks in processes of `python -m module` and returns when all are done."""
    waiting, lost = deque(tasks), dict[int, int]()
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:

        def start() -> None:
            worker = stack.enter_context(_Worker(module, setup))
            selector.register(worker.output, selectors.EVENT_READ, worker)
            worker.give(waiting.popleft())

        for _ in range(min(workers, len(tasks))):
            start()
        while selector.get_map():
            ready = [key.data for key, _ in selector.select(timeout=1.0)]
            for worker in [key.data for key in list(selector.get_map().values())]:
                alive = worker.listen(on_event) if worker in ready else worker.in_time()
                if alive and worker.task is None and waiting:
                    worker.give(waiting.popleft())
                if alive and worker.task is not None:
                    continue
                selector.unregister(worker.output)
                worker.end()
                if worker.task is not None:
                    _count(lost, worker)
                    waiting.appendleft(worker.task)
                    start()


def _count(lost: dict[int, int], worker: _Worker) -> None:
    task = worker.task
    assert task is not None
    lost[task.number] = lost.get(task.number, 0) + 1
    ended = f"the worker on {task.name} {worker.how_it_ended()}"
    if lost[task.number] >= ATTEMPTS:
        raise Unavailable(
            f"{ended}, {ATTEMPTS} times. Take fewer workers if memory runs out, or look at the data there."
        )
    log.warning("%s; another one does it again", ended)


class _Worker:
    def __init__(self, module: str, setup: Mapping[str, Any]) -> None:
        self.task: PoolTask | None = None
        self._buffer = b""
        self._silent = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # Threads of the workers would compete for cores; an interrupt goes to the parent process only.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._process = start_process(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)
        self._heard = time.monotonic() + START_SECONDS - SILENT_SECONDS
        self._tell(setup)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, task: PoolTask) -> None:
        self.task = task
        self._tell(task.told)

    def listen(self, on_event: OnEvent) -> bool:
        """Reads the worker's messages; returns False at the end of its output."""
        data = self.output.read()
        if data is None:
            return True
        self._heard = max(self._heard, time.monotonic())
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            ((what, fact),) = json.loads(line).items()
            if what == "error":
                raise _error(*fact)
            if self.task is not None:
                on_event(self.task, what, fact)
            if what == "done":
                self.task = None
        return bool(data)

    def in_time(self) -> bool:
        self._silent = time.monotonic() - self._heard > SILENT_SECONDS
        return not self._silent

    def end(self) -> None:
        kill(self._process)
        self.output.close()
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def how_it_ended(self) -> str:
        if self._silent:
            return f"said nothing for {SILENT_SECONDS:.0f} s"
        code = self._process.returncode
        self._errors.seek(0)
        said = last_line(self._errors.read(), STDERR_SHOWN)
        memory = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        return f"{exit_reason(code)}{memory}{said and f': {said}'}"

    def _tell(self, fact: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the worker ended; `listen` reports it
            self._process.stdin.write(json.dumps(fact).encode() + b"\n")
            self._process.stdin.flush()


def _error(kind: str, message: str, param: str | None, code: str | None) -> RondoError:
    found = getattr(errors, kind, RondoError)
    error = RondoError(message, param=param, code=code)
    if isinstance(found, type) and issubclass(found, RondoError):
        error.__class__ = found
    return error
