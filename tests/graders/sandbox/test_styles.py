"""Every style of tests against every forgery: an honest program passes, a forger gets 0, and tests that assert nothing
are an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from graders.forgers import ENDLESS, FORGERS, HONEST, LATE
from graders.styles import ENTRY, STYLES, WITHOUT_ASSERTIONS
from rondo.graders import Sample, Score
from rondo.graders.execution.code import CodeGrader
from rondo.graders.sandbox import Sandbox, SandboxLimits
from rondo.graders.sandbox.isolation import isolation

pytestmark = pytest.mark.skipif(not isolation().available, reason=isolation().about)

LIMITS = SandboxLimits(seconds=30, cpu_seconds=1, memory=256 << 20, processes=8)
ALL = {name: program for name, program in (FORGERS | LATE).items() if program}
PASSED = Score("ok", 1.0, {"found": 1.0, "ran": 1.0, "passed": 1.0}, "")


@pytest.fixture(scope="module")
def grader() -> Iterator[CodeGrader]:
    with Sandbox(2) as sandbox:
        yield CodeGrader(sandbox, LIMITS)


def grade(grader: CodeGrader, program: str, tests: str | list[str], **more: Any) -> Score:
    return asyncio.run(grader.score(Sample("", program, metadata={"tests": tests, **more})))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes_in_every_style(name: str, style: str, grader: CodeGrader) -> None:
    assert grade(grader, HONEST[name], STYLES[style], **ENTRY) == PASSED
    assert grade(grader, HONEST[name], STYLES[style]) == PASSED, "the entry point is inferred"


PAIRS = [
    pytest.param(name, style, marks=() if (i + j) % 3 == 0 else pytest.mark.long)
    for i, name in enumerate(ALL)
    for j, style in enumerate(STYLES)
]
"""Each forger meets every third style, and each style every third forger; `make test-long` has all pairs."""


@pytest.mark.parametrize(("name", "style"), PAIRS)
def test_no_forger_passes_in_any_style(name: str, style: str, grader: CodeGrader) -> None:
    grader = replace(grader, limits=replace(LIMITS, seconds=0.7)) if name in ENDLESS else grader
    score = grade(grader, ALL[name], STYLES[style], **ENTRY)
    assert (score.outcome, score.total) == ("ok", 0.0), score
    assert score.parts["passed"] < 1.0
    assert score.detail


@pytest.mark.parametrize("name", WITHOUT_ASSERTIONS)
def test_tests_that_assert_nothing_are_an_error(name: str, grader: CodeGrader) -> None:
    for program in (HONEST["plain"], "def double(x): return x", "def double(x): raise StopIteration"):
        score = grade(grader, program, WITHOUT_ASSERTIONS[name], **ENTRY)
        assert (score.outcome, score.total) == ("error", 0.0), (program, score)
        assert score.detail
    score = grade(grader, HONEST["plain"], [STYLES["plain assertions"], WITHOUT_ASSERTIONS[name]], **ENTRY)
    assert score.outcome == "error", "one among several"
