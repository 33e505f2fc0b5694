"""CPU time among programs: counted for all processes of a program, shared fairly, and told apart from waiting."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psutil
import pytest

from rondo.graders import Sample, Score
from rondo.graders.execution.code import CodeGrader
from rondo.graders.sandbox import Sandbox, SandboxLimits, SandboxRun, Verdict
from rondo.graders.sandbox.inside.usage import ProcessTask, ProcessUsage, starved
from rondo.graders.sandbox.isolation import isolation
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not isolation().available, reason=isolation().about)

LIMITS = SandboxLimits(seconds=30, cpu_seconds=1)
SPINNER = """
import os
for _ in range(15):
    try:
        if os.fork() == 0:
            try: os.setsid()
            except OSError: pass
            break
    except OSError: pass
while True: pass
"""
SECOND = {"stdin": "", "stdout": "2"}


def score(grader: CodeGrader, program: str, **asked: object) -> Score:
    return asyncio.run(grader.score(Sample("", program, metadata=asked)))


def test_cpu_time_is_that_of_all_processes() -> None:
    program = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        while True: pass
time.sleep(1000)
"""
    with Sandbox(1) as sandbox:
        run = sandbox.run(program, limits=LIMITS)
        assert run.why in ("cpu", "busy")
        assert run.why == "busy" or 1 <= run.cpu_seconds < 3


def test_cpu_time_of_processes_that_have_ended_counts() -> None:
    program = """
import os, time
for _ in range(1000):
    if os.fork() == 0:
        end = time.process_time() + 0.1
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
"""
    with Sandbox(1) as sandbox:
        assert sandbox.run(program, limits=LIMITS).why in ("cpu", "busy")


def test_a_program_of_many_processes_is_given_less_priority() -> None:
    limits = SandboxLimits(seconds=120, cpu_seconds=120)
    with Sandbox(2) as sandbox:
        runs = [
            threading.Thread(target=sandbox.run, args=(each, b"", limits))
            for each in (SPINNER, "while True: pass")
        ]
        for run in runs:
            run.start()
        wait_until(lambda: sorted(nicenesses())[-1:] > [5])
        wait_until(lambda: 0 in nicenesses())  # the program of one process
        for process in (each for each in psutil.Process().children() if is_worker(each)):
            for cage in process.children()[0].children():
                cage.kill()
        for run in runs:
            run.join()


def is_worker(process: psutil.Process) -> bool:
    return "inside.zygote" in " ".join(process.cmdline())


def nicenesses() -> list[int]:
    """Of the processes that compute."""
    family = [each for child in psutil.Process().children() for each in child.children(recursive=True)]
    found = []
    for each in family:
        try:
            if each.cpu_times().user > 0.05:
                found.append(each.nice())
        except psutil.NoSuchProcess:
            continue
    return found


def test_an_honest_program_beside_a_spinning_one_is_not_too_slow() -> None:
    honest = "import time\nwhile time.process_time() < 0.4: pass\nprint(2)"
    with Sandbox(2) as sandbox:
        grader = CodeGrader(sandbox, SandboxLimits(seconds=5, cpu_seconds=2))
        spinning = threading.Thread(target=score, args=(grader, SPINNER), kwargs={"cases": [SECOND]})
        spinning.start()
        found = score(grader, honest, cases=[SECOND])
        spinning.join()
    assert found.total == 1.0 or found.outcome == "timeout", found


@pytest.fixture
def crowded() -> Iterator[Sandbox]:
    """A sandbox on a CPU with much other work."""
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with Sandbox(1) as sandbox, ExitStack() as stack:
        assert sandbox.run("print(1)").ok
        [inner] = psutil.Process(sandbox._idle[0].pid).children()
        inner.cpu_affinity([cpu])
        for _ in range(12):
            other = subprocess.Popen(
                [sys.executable, "-S", "-c", spin], stdout=subprocess.PIPE, start_new_session=True
            )
            stack.callback(other.wait)
            stack.callback(other.kill)
            assert other.stdout is not None
            stack.callback(other.stdout.close)
            assert other.stdout.readline()
        yield sandbox


def test_a_program_that_gets_no_cpu_time_is_not_judged_and_one_that_sleeps_is(crowded: Sandbox) -> None:
    limits = SandboxLimits(seconds=1.5, cpu_seconds=2)
    grader = CodeGrader(crowded, limits)
    computes = "import time\nwhile time.process_time() < 1.8: pass\ndef two(): return 2\nprint(2)"
    found = score(grader, computes, cases=[SECOND])
    assert (found.outcome, found.total) == ("timeout", 0.0), found
    assert "other work on this machine" in found.detail
    found = score(grader, computes, tests="assert two() == 2")
    assert (found.outcome, found.total) == ("timeout", 0.0), found
    found = score(grader, "import time; time.sleep(1000)", cases=[SECOND])
    assert (found.outcome, found.detail) == ("ok", "case 1: too slow")


class Prepared(Sandbox):
    """Runs nothing."""

    def __init__(self, *runs: SandboxRun) -> None:
        super().__init__(1)
        self.runs = list(runs)
        self.results = [(False, "the program has ended")]

    def run(self, program: str, given: bytes = b"", limits: SandboxLimits | None = None) -> SandboxRun:
        return self.runs.pop(0)

    def examine(self, *_: object) -> Verdict:
        return Verdict(True, self.results, busy=True)


def test_what_was_wrong_before_the_machine_was_busy_is_wrong() -> None:
    right, wrong, busy = (
        SandboxRun("exit", 0, b"2\n", b"", 0.1),
        SandboxRun("exit", 0, b"3\n", b"", 0.1),
        SandboxRun("busy", 137, b"", b"", 0.1),
    )

    def found(*runs: SandboxRun, total: str = "all") -> tuple[str, float]:
        grader = CodeGrader(Prepared(*runs), LIMITS, total=total)  # type: ignore[arg-type]
        made = score(grader, "x", cases=[SECOND] * 2)
        return made.outcome, made.total

    assert found(right, busy) == ("timeout", 0.0)
    assert found(wrong, busy) == ("ok", 0.0)
    assert found(wrong, busy, total="share") == ("timeout", 0.0)
    assert score(CodeGrader(Prepared(), LIMITS), "x", tests="assert two() == 2").outcome == "timeout"


def task(cpu: float, waited: float) -> ProcessTask:
    return ProcessTask("", True, 0, cpu, waited)


@pytest.mark.parametrize(
    ("before", "after", "cpu", "seconds"),
    [
        ({}, {"1": task(0.1, 0.4)}, 0.1, 0.4),
        ({"1": task(1, 2)}, {"1": task(1.1, 2.4)}, 0.1, 0.4),
        ({"1": task(1, 2)}, {"1": task(1.1, 2.4)}, 0.4, 0.1),
        ({"1": task(1, 2)}, {"1": task(1.1, 2.4)}, 2.0, 0.0),
        ({"1": task(1, 2), "2": task(1, 0)}, {"1": task(1, 2), "2": task(1, 0.3)}, 0.0, 0.3),
        ({"1": task(1, 2)}, {}, 0.1, 0.0),
        ({"1": task(1, 2)}, {"1": task(1, 2)}, 0.0, 0.0),
    ],
)
def test_time_without_a_cpu_is_that_of_others(
    before: dict[str, ProcessTask], after: dict[str, ProcessTask], cpu: float, seconds: float
) -> None:
    """The wait of a thread that other threads of its own program may have caused does not count."""
    used = starved(ProcessUsage(cpu=5.0, tasks=before), ProcessUsage(cpu=5.0 + cpu, tasks=after))
    assert used == pytest.approx(seconds)


@pytest.mark.parametrize(
    "program",
    [
        "import threading, time\n"
        "threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(10)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n",
        "from concurrent.futures import ThreadPoolExecutor\nimport time\n"
        "with ThreadPoolExecutor() as threads: list(threads.map(time.sleep, [0.01] * 100))\n",
        "import multiprocessing\nwith multiprocessing.Pool() as pool: assert pool.map(abs, [-1, 2]) == [1, 2]\n",
        "import asyncio, time\n"
        "async def main(): await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(20)))\n"
        "asyncio.run(main())\n",
    ],
)
def test_pools_of_usual_sizes_fit(program: str) -> None:
    with Sandbox(1) as sandbox:
        run = sandbox.run(program + "print(2)")
    assert run.output == b"2\n", run.errors.decode()


def test_times_of_limits() -> None:
    limits = replace(LIMITS, seconds=3)
    assert limits.longest == 6
    assert SandboxLimits().processes == 12


@pytest.mark.parametrize(
    ("first", "total", "outcome"),
    [
        ("test_a: line 2: AssertionError: ", "all", "ok"),
        ("test_a: line 2: ValueError: the program has ended", "all", "ok"),
        ("test_a: line 2: AssertionError: ", "share", "timeout"),
        ("test_a: the program has ended", "all", "timeout"),
    ],
)
def test_a_program_that_fails_a_test_and_then_waits_for_its_time_to_end_is_judged(
    first: str, total: Any, outcome: str
) -> None:
    prepared = Prepared()
    prepared.results = [(False, first), (False, "test_b: the program has ended")]
    made = score(CodeGrader(prepared, LIMITS, total=total), "x", tests="assert two() == 2")
    assert (made.outcome, made.total) == (outcome, 0.0)
