"""The code sandbox: short programs a minute, each in a cage of its own, and what one costs.

A program reads two numbers and prints their sum; every one of them is right, which is checked. `tests` is the same
function under two assertions, which takes two cages. The peer is a bare `python -I -S` for each program, without any
wall: it shows what starting Python costs, and is nothing to run programs in. On both sides as many run at once as there
are cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from common import THREADS, Report, alternate, arguments, median
from rondo.graders.sandbox import Exam, Sandbox, SandboxLimits

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)"
FUNCTION = "def add(a, b): return a + b"
TESTS = Exam(tests=["assert add(1, 2) == 3\nassert add(-1, 1) == 0"])
LIMITS = SandboxLimits(seconds=60)


def main() -> None:
    options = arguments(__doc__.splitlines()[0], bare="a Python process without walls")
    count, runs = (20, 1) if options.quick else (250, 3)
    report = Report("sandbox")
    with Sandbox(THREADS) as sandbox:
        began = time.perf_counter()
        right(sandbox, 0)
        report.ours["first program, ms (a worker starts)"] = (time.perf_counter() - began) * 1e3
        sides = {
            "programs": lambda: a_minute(count, lambda number: right(sandbox, number)),
            "programs under tests": lambda: a_minute(count, lambda number: passes(sandbox)),
            "one after another": lambda: a_minute(count, lambda number: right(sandbox, number), threads=1),
        }
        if "bare" in options.peers:
            sides["bare"] = lambda: a_minute(count, bare)
        found = {name: median(values) for name, values in alternate(runs, **sides).items()}
    for name in ("programs", "programs under tests"):
        report.ours[f"{name} a minute, {THREADS} at once"] = found[name]
    report.ours["one program, ms"] = 60e3 / found["one after another"]
    if "bare" in found:
        figure = f"programs a minute, {THREADS} at once"
        report.peers["bare Python"] = {figure: found["bare"]}
        report.ratios[figure] = found["programs"] / found["bare"]
    report.notes.append(f"asked for: 1,000 programs a minute on 2 cores; medians of {runs} turns of {count}")
    report.show(options.json)


def a_minute(count: int, action: Callable[[int], None], threads: int = THREADS) -> float:
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(action, range(count)))
        return count / (time.perf_counter() - began) * 60


def right(sandbox: Sandbox, number: int) -> None:
    run = sandbox.run(PROGRAM, b"%d 1\n" % number, LIMITS)
    assert run.output == b"%d\n" % (number + 1), run


def passes(sandbox: Sandbox) -> None:
    assert sandbox.examine(FUNCTION, TESTS, LIMITS).results == [(True, "")]


def bare(number: int) -> None:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM]
    ended = subprocess.run(command, input=b"%d 1\n" % number, capture_output=True, check=True, timeout=60)
    assert ended.stdout == b"%d\n" % (number + 1)


if __name__ == "__main__":
    main()
