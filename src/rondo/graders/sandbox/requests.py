"""A grader's script, which may run other programs in further cages.

Its messages are as in `inside/wire.py`: four bytes of length, then JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rondo.graders.sandbox.inside.wire import MOST_BYTES
from rondo.graders.sandbox.limits import SandboxLimits
from rondo.graders.sandbox.runs import Handles, SandboxRun, collect, made_run, run_script
from rondo.graders.sandbox.worker import SandboxWorker

Serve = Callable[[bytes, Callable[[str, bytes, SandboxLimits, bytes | None], SandboxRun]], Any]
"""Handles a request, in JSON; the second argument is a function that runs a program."""

_HEAD = 4
"""Bytes of a message's length."""
_LEAST_SECONDS = 0.001


def run_grader(
    worker: SandboxWorker, program: str, given: bytes, limits: SandboxLimits, serve: Serve
) -> SandboxRun:
    """Runs a script; `serve` handles its requests for runs of other programs, one after the other."""
    with Handles() as handles:
        output, output_end = handles.pipe()
        errors, errors_end = handles.pipe()
        hears, answers = handles.pipe()
        asked, asks = handles.pipe()
        text = handles.file(program.encode(errors="replace"))
        named = [handles.file(given), output_end, errors_end, text, hears, asks]
        number = worker.start("grader", limits, named)
        handles.close(*named)
        requests = Requests(worker, number, answers, serve, time.monotonic() + limits.seconds)
        kept = {output: bytearray(), errors: bytearray()}
        whole = collect(worker, number, kept, limits, asked=(asked, requests.take))
    run = made_run(worker, number, [kept[output], kept[errors], bytearray()], whole, limits)
    return replace(run, why="busy") if requests.busy else run


class Requests:
    """One cage's requests for runs of other programs. Their content is untrusted."""

    def __init__(
        self, worker: SandboxWorker, number: int, writes: int, serve: Serve, deadline: float
    ) -> None:
        self.busy = False
        self._worker, self._number, self._writes, self._serve = worker, number, writes, serve
        self._deadline, self._data = deadline, bytearray()

    def take(self, part: bytes) -> bool:
        """False at the end of the requests."""
        self._data += part
        while len(self._data) >= _HEAD:
            length = int.from_bytes(self._data[:_HEAD], sys.byteorder)
            if length > MOST_BYTES:
                return False
            if len(self._data) < _HEAD + length:
                return True
            message = bytes(self._data[_HEAD : _HEAD + length])
            del self._data[: _HEAD + length]
            data = json.dumps(self._serve(message, self._run)).encode()
            if not self._answer(len(data).to_bytes(_HEAD, sys.byteorder) + data):
                return False
        return True

    def _run(self, program: str, given: bytes, limits: SandboxLimits, call: bytes | None) -> SandboxRun:
        left = max(_LEAST_SECONDS, self._deadline - time.monotonic())
        limits = replace(limits, seconds=min(limits.seconds, left))
        run = run_script(self._worker, program, given, limits, call, owner=self._number)
        self.busy = self.busy or run.why == "busy"
        return run

    def _answer(self, data: bytes) -> bool:
        """Blocks until the cage has read the answer or has ended; the worker ensures the latter."""
        try:
            while data:
                data = data[os.write(self._writes, data) :]
        except BrokenPipeError:
            return False
        return True
