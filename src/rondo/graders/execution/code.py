"""Grader of generated programs: runs a program in a sandbox, on test inputs or under unit tests."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders.rules.fences import Block, blocks
from rondo.graders.sandbox import Exam, Sandbox, SandboxLimits, SandboxRun, Verdict, WorkerLost, WorkerSilent
from rondo.graders.sandbox.isolation import require
from rondo.graders.score import Outcome, Sample, Score
from rondo.graders.turns import in_turn

Total = Literal["all", "share"]

_LONGEST = 500
_BUSY = "other work on this machine kept the program from running; lower the number of workers"
_KINDS = ("cases", "calls", "tests")


def extract(completion: str) -> str | None:
    """The last block that is labelled as Python, else the last block without a label, else the last block; the whole
    completion if it has no fence. None if the text is blank or no fence is closed."""
    last: dict[tuple[bool, bool], Block] = {}
    found = False
    for block in blocks(completion):
        found = True
        if block.closed and completion[block.start : block.end].strip():
            last[block.is_python, not block.label] = block
    code = last[max(last)].code(completion) if last else "" if found else completion
    return code if code.strip() else None


@dataclass(frozen=True)
class CodeGrader:
    """Parts: `found` (the completion contains a program), `ran` (the program exited with code 0, or could be loaded)
    and `passed`, the share of passed checks. The sample's metadata has the checks as one of:

    - `cases`: `{"stdin", "stdout"}` each; the program runs once per case;
    - `calls`: `{"function", "args", "kwargs", "expected"}` each;
    - `tests`: Python source with assertions, as one text or several; with `entry_point`, the name of the function that
      is passed to HumanEval's `check`.
    """

    sandbox: Sandbox = field(default_factory=Sandbox)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    total: Total = "all"
    """`all`: 1 if every check passed, else 0; `share`: the share of passed checks."""
    tolerance: float = 0.0
    """Relative or absolute tolerance for numbers in outputs and values."""
    _threads: list[ThreadPoolExecutor] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.total not in ("all", "share"):
            raise ConfigError(f"total is {self.total!r}; it must be all or share.", param="total")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"tolerance is {self.tolerance}; it must be at least 0 and below 1.", param="tolerance"
            )
        require()
        self._threads.append(ThreadPoolExecutor(self.sandbox.workers, thread_name_prefix="sandbox"))

    def check_sample(self, sample: Sample) -> None:
        _asked(sample.metadata)

    async def score(self, sample: Sample) -> Score:
        asked = _asked(sample.metadata)
        given_up = threading.Event()

        def work(begin: Callable[[], None]) -> Score:
            begin()
            program = extract(sample.completion)
            if program is None:
                return self._score(0.0, 0.0, 0.0, "no program found")
            return self._judge(program, asked, sample.metadata, given_up)

        try:
            return await in_turn(self._threads[0], work)
        finally:
            given_up.set()

    def close(self) -> None:
        """Ends the sandbox's processes."""
        self.sandbox.close()
        self._threads[0].shutdown(wait=False, cancel_futures=True)

    def _judge(
        self, program: str, asked: Mapping[str, Any], metadata: Mapping[str, Any], given_up: threading.Event
    ) -> Score:
        try:
            if "cases" in asked:
                return self._on_cases(program, asked["cases"], given_up)
            return self._on_exam(program, _exam(asked, self.tolerance, metadata))
        except WorkerLost as error:
            outcome: Outcome = "timeout" if isinstance(error, WorkerSilent) else "error"
            return Score(outcome, 0.0, detail=str(error)[:_LONGEST])

    def _on_cases(self, program: str, cases: Sequence[Mapping[str, str]], given_up: threading.Event) -> Score:
        passed, ran, detail = 0, True, ""
        for number, case in enumerate(cases, 1):
            run = self.sandbox.run(program, case["stdin"].encode(), self.limits)
            if run.why == "busy" and (self.total == "share" or not detail):
                return Score("timeout", 0.0, detail=f"case {number}: {_BUSY}")
            ran = ran and run.ok
            wrong = _wrong(run, case["stdout"], self.tolerance)
            passed += not wrong
            detail = detail or (wrong and f"case {number}: {wrong}")
            # The remaining cases would time out too and count as failed; the caller may also have been cancelled.
            if run.why in ("cpu", "wall", "busy") or given_up.is_set():
                break
        return self._score(1.0, float(ran), passed / len(cases), detail)

    def _on_exam(self, program: str, exam: Exam) -> Score:
        verdict = self.sandbox.examine(program, exam, self.limits)
        if verdict.busy and (self.total == "share" or not verdict.wrong):
            return Score("timeout", 0.0, detail=_BUSY)
        if verdict.broken:
            return Score("error", 0.0, detail=_printable(verdict.broken))
        detail = next((why for passed, why in verdict.results if not passed), "")
        return self._score(1.0, float(verdict.ran), _share(verdict, exam), detail)

    def _score(self, found: float, ran: float, passed: float, detail: str) -> Score:
        total = passed if self.total == "share" else float(passed == 1.0)
        return Score("ok", total, {"found": found, "ran": ran, "passed": passed}, _printable(detail))


def _printable(detail: str) -> str:
    """Escapes characters that a log cannot encode; a detail may quote arbitrary text of the program."""
    return detail[:_LONGEST].encode(errors="backslashreplace").decode()


def _asked(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {name: metadata[name] for name in _KINDS if metadata.get(name)}
    if len(given) != 1:
        raise InvalidRequest(
            f"a problem for the code grader has one of {', '.join(_KINDS)}; "
            f"this one has {', '.join(sorted(given)) or 'none'}.",
            param="metadata",
        )
    for number, case in enumerate(given.get("cases", [])):
        if not all(isinstance(case.get(name), str) for name in ("stdin", "stdout")):
            raise InvalidRequest("each case has stdin and stdout, both texts.", param=f"cases.{number}")
    for number, call in enumerate(given.get("calls", [])):
        if not isinstance(call.get("function"), str) or "expected" not in call:
            raise InvalidRequest("each call names a function, and what is expected.", param=f"calls.{number}")
    entry_point = metadata.get("entry_point")
    if entry_point is not None and not isinstance(entry_point, str):
        raise InvalidRequest("entry_point is the name of a function, as text.", param="entry_point")
    return given


def _exam(asked: Mapping[str, Any], tolerance: float, metadata: Mapping[str, Any]) -> Exam:
    if "calls" in asked:
        given: list[dict[str, Any]] = [{"args": [], "kwargs": {}} | dict(call) for call in asked["calls"]]
        return Exam(calls=given, tolerance=tolerance)
    tests = [asked["tests"]] if isinstance(asked["tests"], str) else list(asked["tests"])
    entry_point = metadata.get("entry_point") or ""
    return Exam(tests=tests, entry_point=entry_point, in_place=bool(metadata.get("in_place", False)))


def _share(verdict: Verdict, exam: Exam) -> float:
    """Share of passed checks among all checks, if their number is known in advance."""
    asked = max(len(verdict.results), len(exam.calls), len(exam.tests), 1)
    return sum(passed for passed, _ in verdict.results) / asked


def _wrong(run: SandboxRun, expected: str, tolerance: float) -> str:
    """Reason why a run does not count as correct; empty if it does."""
    if run.why != "exit":
        return {
            "cpu": "too much CPU time",
            "wall": "too slow",
            "busy": "too slow on a busy machine",
            "memory": "too much memory",
        }.get(run.why, "too much output")
    if run.code:
        last = run.errors.decode(errors="replace").strip().rpartition("\n")[2]
        return f"ended with code {run.code}: {last}"
    output = run.output.decode(errors="replace")
    if same_output(output, expected, tolerance):
        return ""
    return f"printed {output[:100]!r}"


def same_output(output: str, expected: str, tolerance: float = 0.0) -> bool:
    """Compares line by line, ignoring spaces at the ends of lines and empty lines at the end."""
    ours, theirs = (text.rstrip().splitlines() for text in (output, expected))
    if len(ours) != len(theirs):
        return False
    return all(_same_line(*pair, tolerance) for pair in zip(ours, theirs))


def _same_line(line: str, expected: str, tolerance: float) -> bool:
    if line.rstrip() == expected.rstrip():
        return True
    words, wanted = line.split(), expected.split()
    return (
        bool(tolerance) and len(words) == len(wanted) and all(map(partial(_close, tolerance), words, wanted))
    )


def _close(tolerance: float, word: str, expected: str) -> bool:
    try:
        value, wanted = float(word), float(expected)
    except ValueError:
        return word == expected
    return math.isclose(value, wanted, rel_tol=tolerance, abs_tol=tolerance)
