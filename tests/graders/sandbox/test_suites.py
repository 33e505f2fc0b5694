"""How tests of programs are run and counted: what must pass, what must not, and what is a mistake of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graders.exams import HONEST
from graders.exams_failed import BROKEN, WRONG
from rondo.base.errors import InvalidRequest
from rondo.graders import Sample, Score
from rondo.graders.execution.code import CodeGrader
from rondo.graders.sandbox import Sandbox, SandboxLimits
from rondo.graders.sandbox.isolation import isolation

pytestmark = pytest.mark.skipif(not isolation().available, reason=isolation().about)

LIMITS = SandboxLimits(seconds=30, cpu_seconds=1, memory=256 << 20, processes=8)


@pytest.fixture(scope="module")
def grader() -> Iterator[CodeGrader]:
    with Sandbox(2) as sandbox:
        yield CodeGrader(sandbox, LIMITS)


def grade(grader: CodeGrader, program: str, **asked: Any) -> Score:
    return asyncio.run(grader.score(Sample("", program, metadata=asked)))


@pytest.mark.parametrize("name", HONEST)
def test_a_right_program_passes(name: str, grader: CodeGrader) -> None:
    program, tests, more = HONEST[name]
    score = grade(grader, program, tests=tests, **more)
    assert (score.outcome, score.total) == ("ok", 1.0), score


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_gets_0(name: str, grader: CodeGrader) -> None:
    program, tests, more = WRONG[name]
    score = grade(grader, program, tests=tests, **more)
    assert (score.outcome, score.total) == ("ok", 0.0), score
    assert score.detail


@pytest.mark.parametrize("name", BROKEN)
def test_tests_that_cannot_judge_are_an_error(name: str, grader: CodeGrader) -> None:
    program, tests, more = BROKEN[name]
    score = grade(grader, program, tests=tests, **more)
    assert (score.outcome, score.total) == ("error", 0.0), score
    assert score.detail


RAISES = {
    "assertRaises": """
import unittest
class Tests(unittest.TestCase):
    def test_with(self):
        with self.assertRaises(Exception): f(-1)
    def test_call(self): self.assertRaises(Exception, f, 1)
""",
    "pytest.raises": "import pytest\ndef test_it():\n    with pytest.raises(Exception): f(1)",
    "try with assert": "try:\n    f(1)\n    assert False\nexcept Exception: pass",
    "try with else": "try: f(1)\nexcept Exception: pass\nelse: raise AssertionError",
}
"""Tests that expect an exception of the program."""
ANY_RAISES = RAISES | {
    "bare except": "try: f(1)\nexcept: pass\nelse: assert False",
    "BaseException": "import pytest\nwith pytest.raises(BaseException): f(1)",
}
ENDS = {
    "ends": "import os; os._exit(0)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "has no memory": "bytearray(1 << 40)",
    "says that it has no memory": "raise MemoryError",
    "sends rubbish": "import os; os.write(5, b'\\2\\0\\0\\0xx')",
    "spins": "while True: pass",
}
LEAVES = {
    "exits": "import sys; sys.exit()",
    "interrupts": "raise KeyboardInterrupt",
    "closes": "raise GeneratorExit",
    "raises the base": "raise BaseException",
    "is cancelled": "import asyncio; raise asyncio.CancelledError",
}


@pytest.mark.parametrize("how", [*ENDS, *LEAVES])
def test_an_end_is_no_exception_that_tests_expect(how: str, grader: CodeGrader) -> None:
    program = f"def f(x):\n    {(ENDS | LEAVES)[how]}"
    for name, tests in (RAISES if how in LEAVES else ANY_RAISES).items():
        if how == "spins" and name != "assertRaises":
            continue
        score = grade(grader, program, tests=tests)
        assert (score.outcome, score.total) == ("ok", 0.0), (name, score)


@pytest.mark.parametrize("name", ANY_RAISES)
def test_an_exception_is_one(name: str, grader: CodeGrader) -> None:
    assert grade(grader, "def f(x): raise ValueError(x)", tests=ANY_RAISES[name]).total == 1.0
    score = grade(grader, "def f(x): return x", tests=ANY_RAISES[name])
    assert (score.outcome, score.total) == ("ok", 0.0)


@pytest.mark.parametrize("tolerance", [0.0, 1e-6])
@pytest.mark.parametrize(
    "value",
    [
        *(
            "Decimal('sNaN')",
            "Decimal('NaN')",
            "Decimal('1e400000')",
            "10**400",
            "-10**400",
            "1 << 20_000_000",
        ),
        *("ValueError", "[[ValueError]]", "float('nan')", "{float('nan')}", "float('inf')", "complex(4, 2)"),
        *("b'x'", "'\\ud800'", "[10**400]", "{1: Decimal('sNaN')}", "NotImplemented", "...", "range(10**18)"),
        *("Fraction(10**400, 3)", "Raises()", "[Raises()]", "{'a': Raises()}"),
    ],
)
def test_values_that_cannot_be_compared_are_wrong(value: str, tolerance: float, grader: CodeGrader) -> None:
    program = f"""
from decimal import Decimal
from fractions import Fraction
class Raises:
    def __repr__(self): raise SystemExit(0)
    __eq__ = __len__ = __iter__ = __bool__ = __float__ = __str__ = __repr__
    __hash__ = None
def double(x): return {value}
"""
    expected = (4, 4.5, [4.5], {"a": 4.5}, None, "x")
    calls = [{"function": "double", "args": [2], "expected": each} for each in expected]
    score = grade(replace(grader, tolerance=tolerance), program, calls=calls)
    assert (score.outcome, score.total, score.parts["passed"]) == ("ok", 0.0, 0.0), score
    score.detail.encode()


@pytest.mark.parametrize("value", ["10**400", "float('nan')", "[10**400, float('nan')]", "float('inf')"])
def test_numbers_that_are_no_usual_ones_can_be_right(value: str, grader: CodeGrader) -> None:
    calls = [{"function": "f", "expected": eval(value)}]
    for tolerance in (0.0, 1e-6):
        score = grade(replace(grader, tolerance=tolerance), f"def f(): return {value}", calls=calls)
        assert score.total == 1.0, score


def test_asynchronous_functions_are_awaited_in_calls(grader: CodeGrader) -> None:
    calls = [{"function": "double", "args": [2], "expected": 4}]
    assert grade(grader, "async def double(x): return 2 * x", calls=calls).total == 1.0
    assert grade(grader, "async def double(x): return x", calls=calls).total == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        "assert double(2) == 4",
        "r = [double(i) for i in range(40)]\nassert r == [2 * i for i in range(40)]",
        "import pytest\nwith pytest.raises(Exception):\n    r = [double(i) for i in range(40)]",
    ],
)
def test_values_that_fill_memory_are_wrong(tests: str, grader: CodeGrader) -> None:
    score = grade(grader, "def double(x): return [[] for _ in range(1_000_000)]", tests=tests)
    assert (score.outcome, score.total) == ("ok", 0.0), score


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("import numpy as np\nassert f(1)", "numpy"),
        ("assert math.isclose(f(1), 1)", "use math without importing it"),
        ("from math import *\nassert isclose(f(1), 1)", "from solution import isclose"),
        ("f(1)", "no assertion that can run"),
        ("import os\nif os.environ.get('THOROUGH'):\n    assert f(1)", "executed no assertion"),
        ("def test_it():\n    yield f(1)\n    assert f(1)", "is a generator"),
        ("class TestIt:\n    def __init__(self): pass\n    def test_it(self): assert f(1)", "__init__"),
        ("assert eval(f(1)) == 1", "ast.literal_eval"),
        ("import pytest\nwith pytest.warns(UserWarning): f(1)", "pytest.warns"),
    ],
)
def test_errors_of_tests_say_what_to_do(tests: str, said: str, grader: CodeGrader) -> None:
    score = grade(grader, "def f(x): return x", tests=tests)
    assert score.outcome == "error", score
    assert said in score.detail


def test_a_share_counts_every_test_that_did_not_run(grader: CodeGrader) -> None:
    tests = """
import unittest
class Tests(unittest.TestCase):
    def test_1(self): self.assertEqual(double(1), 2)
    def test_2(self): self.assertEqual(double(2), 4)
    def test_3(self): self.assertEqual(double(3), 6)
    def test_4(self): self.assertEqual(double(4), 8)
"""
    for end in (
        "raise KeyboardInterrupt",
        "import os; os._exit(0)",
        "raise SystemExit(0)",
        "raise StopIteration",
    ):
        program = f"def double(x):\n    if x > 1:\n        {end}\n    return 2 * x"
        score = grade(replace(grader, total="share"), program, tests=tests)
        assert score.total == 0.25, (end, score)


def test_an_entry_point_is_text(grader: CodeGrader) -> None:
    with pytest.raises(InvalidRequest, match="entry_point"):
        grade(grader, "x = 1", tests="assert x", entry_point=3)
