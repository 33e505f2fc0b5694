"""Runs of a worker: a program with an input, or a program under tests."""

import fcntl
import json
import os
import re
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rondo.graders.sandbox.inside import literal
from rondo.graders.sandbox.limits import SandboxLimits
from rondo.graders.sandbox.worker import GRACE_SECONDS, Ended, SandboxWorker, WorkerLost, WorkerSilent

Why = Literal["exit", "cpu", "wall", "busy", "memory", "output"]

_ERRORS_KEPT = 4096
_VERDICT_BYTES = 4 << 20
_PART = 1 << 16
_EXAMINER_SECONDS = 10.0
"""Seconds of the tests beyond the program's time, to detect and report its end."""
_EXAMINER_MEMORY = 1 << 30
_EXAMINER_CPU = 60
_CPU_SHARE = 0.5
"""Share of the CPU limit from which a kill signal counts as a limit violation: the kernel counts in ticks, not exactly.
"""
_ENDED = "the program has ended"
"""The examiner's error for a test whose program has ended."""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_UNCHANGED = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True)
class SandboxRun:
    why: Why
    """`exit` if the program ended by itself, else the exceeded limit. `busy`: its time ran out because other load
    prevented it from running, so the run has no result."""
    code: int
    """0 on success; 128 and more: by a signal."""
    output: bytes
    errors: bytes
    """The beginning of its error output."""
    cpu_seconds: float
    value: bytes = b""
    """The return value of the call, as the program wrote it."""

    @property
    def ok(self) -> bool:
        return self.why == "exit" and self.code == 0


@dataclass(frozen=True)
class Exam:
    """Tests of a program: calls with expected values, or Python source with assertions."""

    calls: Sequence[Mapping[str, Any]] = ()
    """Each with `function`, `args`, `kwargs` and `expected`."""
    tests: Sequence[str] = ()
    entry_point: str = ""
    """The tested function, `Solution.add` for a method; empty if the tests name it themselves."""
    tolerance: float = 0.0
    in_place: bool = False
    """Changes of the program to its mutable arguments are applied to the tests' objects."""

    def text(self) -> bytes:
        """Raises `TypeError` for a value that is not plain."""
        what = {"calls": list(self.calls)} if self.calls else {"tests": list(self.tests)}
        more = {"entry_point": self.entry_point, "tolerance": self.tolerance, "in_place": self.in_place}
        return json.dumps(literal.encode(what | more)).encode()


@dataclass(frozen=True)
class Verdict:
    ran: bool
    """The program could be loaded."""
    results: list[tuple[bool, str]]
    """For each test: passed or not, and the reason."""
    broken: str = ""
    """Reason why the tests themselves could not be run."""
    busy: bool = False
    """The program's time ran out because other load prevented it from running: no verdict."""

    @property
    def wrong(self) -> bool:
        """Whether a test failed while the program was still running."""
        return any(not passed and not _by_end(why) for passed, why in self.results)


def run_script(
    worker: SandboxWorker,
    program: str,
    given: bytes,
    limits: SandboxLimits,
    call: bytes | None = None,
    owner: int | None = None,
) -> SandboxRun:
    """Calls a function if `call` has a function and its arguments. A run that was requested by another cage, the
    `owner`, ends with that cage."""
    with Handles() as handles:
        output, output_end = handles.pipe()
        errors, errors_end = handles.pipe()
        value, value_end = handles.pipe()
        named = [handles.file(given), output_end, errors_end, handles.file(program.encode(errors="replace"))]
        kept = {output: bytearray(), errors: bytearray()}
        if call is not None:
            named += [handles.file(call), value_end]
            kept[value] = bytearray()
        number = worker.start("script" if call is None else "called", limits, named)
        handles.close(*named, value_end)
        whole = collect(worker, number, kept, limits, owner=owner)
    return made_run(worker, number, [kept[output], kept[errors], kept.get(value, bytearray())], whole, limits)


def made_run(
    worker: SandboxWorker, number: int, kept: list[bytearray], whole: bool, limits: SandboxLimits
) -> SandboxRun:
    ended = _made(worker, number)
    output, errors, value = map(bytes, kept)
    why: Why = "output" if not whole else _why(ended, limits)
    return SandboxRun(why, ended.code, output, errors[:_ERRORS_KEPT], ended.cpu_seconds, value)


def run_exam(worker: SandboxWorker, program: str, exam: Exam, limits: SandboxLimits) -> Verdict:
    """Runs the program in one cage and its tests in another; expected values never enter the first."""
    with Handles() as handles:
        null = handles.null()
        asked, asks = handles.pipe()
        answered, answers = handles.pipe()
        verdict, verdict_end = handles.pipe()
        errors, errors_end = handles.pipe()
        program_file, exam_file = handles.file(program.encode(errors="replace")), handles.file(exam.text())
        examined = worker.start("served", limits, [null, null, null, program_file, asked, answers])
        limits = _of_examiner(limits)
        ends = [errors_end, exam_file, answered, asks, verdict_end]
        examiner = worker.start("examiner", limits, [null, null, *ends])
        handles.close(program_file, asked, answers, *ends)
        kept = {verdict: bytearray(), errors: bytearray()}
        collect(worker, examiner, kept, limits)
    worker.kill(examined)
    worker.wait(examined, limits)
    program_ended = _made(worker, examined)
    ended = _made(worker, examiner)
    busy = "busy" in (program_ended.why, ended.why)
    if kept[verdict]:
        found = _verdict(bytes(kept[verdict]))
        return replace(found, busy=busy and not all(passed for passed, _ in found.results))
    if busy:
        return Verdict(True, [], busy=True)
    # Only a value of the program can crash the Python process of its tests.
    crashed = ended.code - 128 in _CRASHES
    if ended.why == "exit" and ended.cpu_seconds < limits.cpu_seconds and not crashed:
        said = kept[errors].decode(errors="replace").strip().rpartition("\n")[2]
        raise WorkerLost(f"the process with the tests ended without a verdict (code {ended.code}): {said}")
    return Verdict(True, [(False, "the tests did not come to an end with this program")])


def _of_examiner(limits: SandboxLimits) -> SandboxLimits:
    return replace(
        limits,
        seconds=limits.longest + _EXAMINER_SECONDS,
        cpu_seconds=_EXAMINER_CPU,
        memory=_EXAMINER_MEMORY,
        output=_VERDICT_BYTES,
    )


def collect(
    worker: SandboxWorker,
    number: int,
    kept: dict[int, bytearray],
    limits: SandboxLimits,
    asked: tuple[int, Callable[[bytes], bool]] | None = None,
    owner: int | None = None,
) -> bool:
    """Reads until all pipes are closed and the cage has ended; False if the output exceeds the limit. `asked` is a
    descriptor with a function that receives its data and returns False after the last part."""
    deadline = time.monotonic() + limits.longest + GRACE_SECONDS
    poll = select.poll()
    if owner is not None and worker.ended(owner) is not None:
        worker.kill(number)
    left = {*kept, *(asked[:1] if asked else ())}
    for handle in (*left, worker.fileno()):
        poll.register(handle, select.POLLIN)
    count = 0
    while left or worker.ended(number) is None:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise WorkerSilent("a sandbox's worker is silent.")
        for handle, _ in ready:
            if handle == worker.fileno():
                worker.hear()
                if owner is not None and worker.ended(owner) is not None:
                    worker.kill(number)
                continue
            part = os.read(handle, _PART)
            if asked is not None and handle == asked[0]:
                goes_on = bool(part) and asked[1](part)
            else:
                goes_on = bool(part)
                if count <= limits.output < count + len(part):
                    worker.kill(number)
                count += len(part)
                if count <= limits.output:
                    kept[handle] += part
            if not goes_on:
                poll.unregister(handle)
                left.discard(handle)
            if asked is not None and handle == asked[0]:
                break  # a nested run has already read the worker's messages
    return count <= limits.output


def _made(worker: SandboxWorker, number: int) -> Ended:
    ended = worker.take(number)
    if ended.why == "failed":
        raise WorkerLost(f"a cage could not be made (code {ended.code}). {ended.text}".strip())
    return ended


def _why(ended: Ended, limits: SandboxLimits) -> Why:
    if ended.why in ("wall", "busy", "cpu", "memory"):
        return cast(Why, ended.why)
    killed = ended.code in (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
    return "cpu" if killed and ended.cpu_seconds > _CPU_SHARE * limits.cpu_seconds else "exit"


def _by_end(why: str) -> bool:
    """Whether a test failed because the program was ended. An error raised by the test with the same text has a line
    number."""
    return why.endswith(_ENDED) and not re.search(rf"line \d+: .*: {_ENDED}$", why, re.DOTALL)


def _verdict(data: bytes) -> Verdict:
    found = json.loads(data)
    return Verdict(found["ran"], [(passed, why) for passed, why in found["results"]], found["broken"])


class Handles:
    """Pipes and files, closed together unless they were closed or passed on earlier."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> "Handles":
        return self

    def __exit__(self, *error: object) -> None:
        self.close(*self._open)

    def close(self, *handles: int) -> None:
        for handle in self._open & set(handles):
            self._open.discard(handle)
            os.close(handle)

    def null(self) -> int:
        handle = os.open(os.devnull, os.O_RDWR)
        self._open.add(handle)
        return handle

    def pipe(self) -> tuple[int, int]:
        reads, writes = os.pipe()
        self._open |= {reads, writes}
        return reads, writes

    def file(self, data: bytes) -> int:
        """A file in memory, sealed against changes by its readers."""
        handle = os.memfd_create("given", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._open.add(handle)
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _UNCHANGED)
        os.lseek(handle, 0, os.SEEK_SET)
        return handle
