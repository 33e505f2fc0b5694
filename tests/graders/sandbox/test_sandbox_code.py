"""The code grader: programs that do what they should pass, those that do not do not, whatever they try."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from graders.forgers import CALLS, ENDLESS, FORGERS, HONEST, TESTS
from rondo.base.errors import ConfigError, InvalidRequest, Unavailable
from rondo.base.telemetry.metrics import render
from rondo.graders import Sample, Score
from rondo.graders.execution.code import CodeGrader, extract, same_output
from rondo.graders.sandbox import Sandbox, SandboxLimits, runs
from rondo.graders.sandbox import isolation as isolation_module
from rondo.graders.sandbox import worker as worker_module
from rondo.graders.sandbox.isolation import isolation
from support.waiting import wait_until

walled = pytest.mark.skipif(not isolation().available, reason=isolation().about)

LIMITS = SandboxLimits(seconds=30, cpu_seconds=1, memory=256 << 20, processes=8)
SHORT = replace(LIMITS, seconds=0.7)
ASKED = {"tests": {"tests": TESTS}, "calls": {"calls": CALLS}}


@pytest.fixture(scope="module")
def grader() -> Iterator[CodeGrader]:
    with Sandbox(2) as sandbox:
        yield CodeGrader(sandbox, LIMITS)


def grade(grader: CodeGrader, program: str, **asked: Any) -> Score:
    return asyncio.run(grader.score(Sample("", program, metadata=asked)))


@walled
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", HONEST)
def test_what_does_as_it_should_passes(name: str, asked: str, grader: CodeGrader) -> None:
    score = grade(grader, HONEST[name], **ASKED[asked])
    assert score == Score("ok", 1.0, {"found": 1.0, "ran": 1.0, "passed": 1.0}, ""), score


@walled
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", [name for name in FORGERS if FORGERS[name]])
def test_what_does_not_never_does(name: str, asked: str, grader: CodeGrader) -> None:
    grader = replace(grader, limits=SHORT) if name in ENDLESS else grader
    score = grade(grader, FORGERS[name], **ASKED[asked])
    assert score.outcome == "ok", score
    assert score.total == 0.0
    assert score.parts["passed"] < 1.0
    assert score.detail


@walled
@pytest.mark.parametrize("test", ["assert double(2) == 4", "def test_it():\n    assert double(2) == 4"])
@pytest.mark.parametrize("name", [name for name in FORGERS if FORGERS[name]])
def test_nor_in_a_single_comparison(name: str, test: str, grader: CodeGrader) -> None:
    if name in ("answers in its own words", "looks for the tests"):
        return  # it guesses: 4 is the right answer here, and it gives it
    grader = replace(grader, limits=SHORT) if name in ENDLESS else grader
    score = grade(grader, FORGERS[name], tests=test)
    assert (score.outcome, score.total, score.parts["passed"]) == ("ok", 0.0, 0.0), score


CASES = [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "4 5\n", "stdout": "9\n"}]


@walled
@pytest.mark.parametrize(
    ("program", "ran", "passed", "detail"),
    [
        ("print(sum(map(int, input().split())))", 1.0, 1.0, ""),
        ("print(3)", 1.0, 0.5, "case 2: printed '3\\n'"),
        ("print(3); print(9)", 1.0, 0.0, "case 1: printed '3\\n9\\n'"),
        (
            "a, b = map(int, input().split()); print(a + b); assert a == 1",
            0.0,
            0.5,
            "case 2: ended with code 1: AssertionE",
        ),
        ("import sys; print('3'); sys.exit(3)", 0.0, 0.0, "case 1: ended with code 3"),
        ("import os; print(3, flush=True); os.kill(os.getpid(), 9)", 0.0, 0.0, "case 1: ended with code 137"),
        ("while True: pass", 0.0, 0.0, "case 1: too much CPU time"),
        ("import time; time.sleep(60)", 0.0, 0.0, "case 1: too slow"),
        ("while True: print(3)", 0.0, 0.0, "case 1: too much output"),
        ("x = bytearray(1 << 30)", 0.0, 0.0, "case 1: ended with code 1: MemoryError"),
        ('print(\'{"why": "exit", "passed": true}\')', 1.0, 0.0, "case 1: printed"),
    ],
)
def test_cases_are_compared_with_what_is_printed(
    program: str, ran: float, passed: float, detail: str, grader: CodeGrader
) -> None:
    grader = replace(grader, limits=SHORT) if "sleep" in program else grader
    score = grade(grader, f"It is:\n```python\n{program}\n```\n", cases=CASES)
    assert score.outcome == "ok"
    assert score.parts == {"found": 1.0, "ran": ran, "passed": passed}
    assert score.total == float(passed == 1.0)
    assert score.detail.startswith(detail)
    assert bool(score.detail) == bool(detail)


@walled
def test_a_share_can_be_the_total() -> None:
    with Sandbox(1) as sandbox:
        grader = CodeGrader(sandbox, LIMITS, total="share")
        assert grade(grader, "print(3)", cases=CASES).total == 0.5
        assert (
            grade(
                grader,
                "def f(x): return x",
                calls=[{"function": "f", "args": [i], "expected": 1} for i in (1, 2, 1, 3)],
            ).total
            == 0.5
        )


@walled
def test_tests_as_people_have_them(grader: CodeGrader) -> None:
    human_eval = (
        "METADATA = {}\ndef check(candidate):\n    assert candidate([1.0, 2.0], 0.5) == False\ncheck(near)"
    )
    near = (
        "from typing import List\ndef near(numbers: List[float], threshold: float) -> bool:\n    return False"
    )
    assert grade(grader, near, tests=human_eval).total == 1.0
    assert grade(grader, near.replace("False", "True"), tests=human_eval).total == 0.0
    stack = """
class Empty(LookupError): pass
class Stack:
    def __init__(self, *items): self.items = list(items)
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise Empty('nothing left')
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __eq__(self, other): return self.items == other.items
    def __add__(self, other): return Stack(*self.items, *other.items)
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
def each(function, values): return [function(value) for value in values]
def up_to(n): yield from range(n)
"""
    of_stack = """
import unittest
import solution
from solution import Stack, Empty
class StackTest(unittest.TestCase):
    def setUp(self):
        self.stack = Stack(1, 2)
    def test_push(self):
        self.stack.push({'a': (1, 2)})
        self.assertEqual(len(self.stack), 3)
        self.assertEqual(self.stack.pop(), {'a': (1, 2)})
        self.assertEqual(list(self.stack), [1, 2])
        self.assertEqual(self.stack.items, [1, 2])
        self.assertIsInstance(self.stack, Stack)
        self.assertIn(2, self.stack)
        self.assertNotIn(3, self.stack)
        self.assertEqual(self.stack + Stack(3), Stack(1, 2, 3))
        self.assertNotEqual(self.stack, Stack(1))
    def test_empty(self):
        with self.assertRaises(Empty) as caught:
            Stack().pop()
        self.assertEqual(str(caught.exception), 'nothing left')
        with self.assertRaises(LookupError):
            Stack().pop()
        with self.assertRaises(AttributeError):
            self.stack.missing
        self.assertFalse(Stack())
    def test_with(self):
        with self.stack as stack:
            self.assertEqual(len(stack), 2)
        self.assertEqual(len(self.stack), 0)
    def test_functions(self):
        self.assertEqual(solution.each(lambda x: x + 1, [1, 2]), [2, 3])
        self.assertEqual(solution.each(str, [1, 2]), ['1', '2'])
        self.assertEqual(list(solution.up_to(3)), [0, 1, 2])
    @unittest.skip('by the tests themselves')
    def test_skipped(self):
        self.fail()
"""
    score = grade(grader, stack, tests=of_stack)
    assert score.total == 1.0, score


@walled
def test_values_cross_as_they_are(grader: CodeGrader) -> None:
    values = [
        None,
        True,
        -3,
        10**40,
        0.1,
        "é\ud800",
        b"\xff",
        [1, [2]],
        {"a": {"b": 1}},
        1 + 2j,
        {1, 2},
        (1, (2,)),
    ]
    calls = [{"function": "same", "args": [value], "expected": value} for value in values]
    assert grade(grader, "def same(x): return x", calls=calls).total == 1.0
    tests = """
import collections, decimal, fractions, math
numbers = decimal.Decimal('1.10'), fractions.Fraction(1, 3)
for value in (*numbers, collections.deque([1]), range(3), ..., frozenset({1}), bytearray(b'x')):
    assert same(value) == value and type(same(value)) is type(value)
assert math.isnan(same(math.nan))
"""
    assert grade(grader, "def same(x): return x", tests=tests).total == 1.0
    kinds = "import collections\ndef same(x): return collections.Counter(x)"
    assert (
        grade(
            grader, kinds, calls=[{"function": "same", "args": ["aab"], "expected": {"a": 2, "b": 1}}]
        ).total
        == 1.0
    )


@walled
def test_a_method_of_a_class_is_called(grader: CodeGrader) -> None:
    program = "class Solution:\n    def add(self, a, b=0): return (a, b)"
    calls = [{"function": "Solution.add", "args": [1], "kwargs": {"b": 2}, "expected": [1, 2]}]
    assert grade(grader, program, calls=calls).total == 1.0


@walled
def test_what_is_changed_in_place_is_seen_where_it_is_asked_for(grader: CodeGrader) -> None:
    tests = "values = [3, 1, 2]\nsort(values)\nassert values == [1, 2, 3]"
    program = "def sort(values): values.sort()"
    assert grade(grader, program, tests=tests, in_place=True).total == 1.0
    assert grade(grader, program, tests=tests).total == 0.0


@walled
@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("assert (", "no Python"),
        ("import no_such_package\nassert f(1)", "no_such_package"),
        ("assert f(object())", "a object to the program"),
        ("def test_it(fixture): assert fixture", "asks for arguments (fixture)"),
        ("raise KeyError('own')\nassert len('own') == 3", "own"),
    ],
)
def test_tests_that_cannot_be_run_are_an_error_and_no_judgement(
    tests: str, message: str, grader: CodeGrader
) -> None:
    score = grade(grader, "def f(x): return x", tests=tests)
    assert score.outcome == "error"
    assert message in score.detail


@walled
def test_numbers_may_be_near() -> None:
    with Sandbox(1) as sandbox:
        grader = CodeGrader(sandbox, LIMITS, tolerance=1e-6)
        assert grade(grader, "print('x', 0.1 + 0.2)", cases=[{"stdin": "", "stdout": "x 0.3"}]).total == 1.0
        assert grade(grader, "print('x', 0.31)", cases=[{"stdin": "", "stdout": "x 0.3"}]).total == 0.0
        calls = [{"function": "f", "expected": [0.3]}]
        assert grade(grader, "def f(): return [0.1 + 0.2]", calls=calls).total == 1.0
        assert grade(grader, "def f(): return [0.2]", calls=calls).total == 0.0


@walled
@pytest.mark.parametrize(("whose", "times"), [("outer", 1), ("inner", 1), ("inner", 2)])
def test_a_program_whose_worker_is_killed_runs_once_more(whose: str, times: int) -> None:
    """What happened says nothing of the program, unless it happens again; then nothing is known of it."""
    others = workers()
    with Sandbox(1) as sandbox:
        grader = CodeGrader(sandbox, SandboxLimits(seconds=30))
        assert grade(grader, "print(1)", cases=[{"stdin": "", "stdout": "1"}]).total == 1.0
        killed: list[psutil.Process] = []

        def kill_at_work() -> None:
            """Once a program runs in it."""
            for _ in range(times):
                wait_until(lambda: any(at_work(worker) for worker in workers(others + killed)))
                [outer] = workers(others + killed)
                inner = outer.children()[0]
                killed.extend([outer, inner])
                (outer if whose == "outer" else inner).kill()

        killer = threading.Thread(target=kill_at_work)
        killer.start()
        program = "import time; time.sleep(1.5); print(1)"
        score = grade(grader, program, cases=[{"stdin": "", "stdout": "1"}])
        killer.join()
        if times == 1:
            assert (score.outcome, score.total) == ("ok", 1.0)
        else:
            assert score.outcome == "error"
            assert "worker has ended" in score.detail
        assert not psutil.wait_procs(killed, timeout=10)[1]
        assert b"rondo:sandbox_workers_lost_total" in render()
        assert grade(grader, "print(1)", cases=[{"stdin": "", "stdout": "1"}]).total == 1.0


def workers(but: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """Of sandboxes of ours, with a process within."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child not in but and "inside.zygote" in " ".join(child.cmdline()) and child.children():
                found.append(child)
    return found


def at_work(worker: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return len(worker.children(recursive=True)) > 1
    return False


@walled
def test_a_worker_that_is_silent_is_a_timeout_and_the_next_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, worker_module):
        monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    case = {"stdin": "", "stdout": "1"}
    with Sandbox(1) as sandbox:
        grader = CodeGrader(sandbox, LIMITS)
        assert grade(grader, "print(1)", cases=[case]).total == 1.0
        outer = psutil.Process(sandbox._idle[0].pid)
        [inner] = outer.children()
        inner.suspend()
        score = grade(replace(grader, limits=SHORT), "print(1)", cases=[case])
        assert (score.outcome, score.detail) == ("timeout", "a sandbox's worker is silent.")
        assert not psutil.wait_procs([outer, inner], timeout=10)[1]
        assert grade(grader, "print(1)", cases=[case]).total == 1.0


@walled
def test_nobody_waits_for_a_grader_that_was_given_up() -> None:
    async def give_up(grader: CodeGrader) -> None:
        sample = Sample(
            "", "import time; time.sleep(0.2)", metadata={"cases": [{"stdin": "", "stdout": ""}] * 100}
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await grader.score(sample)

    with Sandbox(1) as sandbox:
        grader = CodeGrader(sandbox, SandboxLimits(seconds=5))
        asyncio.run(give_up(grader))
        began = time.monotonic()
        assert grade(grader, "print(1)", cases=[{"stdin": "", "stdout": "1"}]).total == 1.0
        assert time.monotonic() - began < 10


@walled
def test_a_forked_child_has_workers_of_its_own() -> None:
    with Sandbox(1) as sandbox:
        assert sandbox.run("print(1)").ok
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if sandbox.run("print(1)").ok else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sandbox.run("print(1)").ok


@walled
def test_a_worker_killed_while_idle_is_replaced() -> None:
    with Sandbox(1) as sandbox:
        assert sandbox.run("print(1)").ok
        worker = sandbox._idle[0]
        os.kill(worker.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(worker.pid)] if psutil.pid_exists(worker.pid) else [], timeout=5)
        deadline = time.monotonic() + 10
        while worker.alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert sandbox.run("print(1)").ok


@walled
def test_nothing_is_left_when_the_owner_closes() -> None:
    sandbox = Sandbox(1)
    sandbox.run("print(1)")
    worker = psutil.Process(sandbox._idle[0].pid)
    everybody = [worker, *worker.children(recursive=True)]
    assert len(everybody) == 2
    sandbox.close()
    assert not psutil.wait_procs(everybody, timeout=10)[1]


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("So:\n```python\nx = 1\n```\nor\n```py\nx = 2\n```\n", "x = 2\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```json\n{}\n```", "{}\n"),
        ("```python\nx = 1", None),
        ("  ", None),
    ],
)
def test_the_program_in_an_answer(completion: str, program: str | None) -> None:
    assert extract(completion) == program


def test_outputs_are_the_same_but_for_space_at_ends() -> None:
    assert same_output("1 \n2\n\n", "1\n2")
    assert not same_output("1\n2", "1 2")
    assert not same_output(" 1", "1")
    assert not same_output("1.0", "1")
    assert same_output("1.0 nan", "1 nan", 1e-9) is False


@walled
def test_what_is_asked_must_be_clear(grader: CodeGrader) -> None:
    for asked in ({}, {"cases": CASES, "tests": "assert f()"}):
        with pytest.raises(InvalidRequest, match="one of cases, calls, tests"):
            grade(grader, "x", **asked)
    with pytest.raises(InvalidRequest, match="stdin and stdout"):
        grade(grader, "x", cases=[{"stdin": 1}])
    with pytest.raises(InvalidRequest, match="names a function"):
        grade(grader, "x", calls=[{"expected": 1}])
    assert grade(grader, "```json\n\n```", tests="assert f()").parts == {
        "found": 0.0,
        "ran": 0.0,
        "passed": 0.0,
    }
    with pytest.raises(ConfigError, match="all or share"):
        CodeGrader(grader.sandbox, total="some")  # type: ignore[arg-type]


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="memory"):
        SandboxLimits(memory=1000)
    with pytest.raises(ConfigError, match="seconds"):
        SandboxLimits(seconds=float("nan"))


def test_without_walls_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = isolation_module.Isolation(False, "user namespaces are off.")
    monkeypatch.setattr(isolation_module, "isolation", lambda: refused)
    with pytest.raises(Unavailable, match="cannot be run here: user namespaces are off"):
        CodeGrader()


@walled
def test_packages_are_seen_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text("def half(x): return x / 2")
    tmp_path.chmod(0o755)  # where we are root, programs are somebody else
    program = "import halves\nprint(halves.half(3))\nopen(halves.__file__, 'a')"
    with Sandbox(1, packages=[tmp_path]) as sandbox:
        run = sandbox.run(program, limits=LIMITS)
        assert run.output == b"1.5\n"
        assert (
            b"halves.py" in run.errors.splitlines()[-1]
        )  # what says no, the mount or the rights, depends on who we are
    with Sandbox(1) as sandbox:
        assert b"No module named 'halves'" in sandbox.run(program, limits=LIMITS).errors
    with pytest.raises(ConfigError, match="no folder"):
        Sandbox(packages=[tmp_path / "missing"])
