"""Equivalence of answers to problems in mathematics, in any notation.

math-verify, which parses LaTeX into sympy, decides equality. Its run time is unbounded, so it runs in the process pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders.extras import needs
from rondo.graders.processes import pool
from rondo.graders.rules.match import boxed, last_line
from rondo.graders.rules.numbers import parse_number
from rondo.graders.score import Sample, Score, references_of

SECONDS = 10.0
TAIL = 4000
"""Number of characters parsed at the end of a text without a box, where the answer is."""
LONGEST = 4000
"""Maximum number of characters of an answer in a box."""


@dataclass(frozen=True)
class MathAnswer:
    """Parts: `found` (the completion has a mathematical expression) and `correct`, which is the total."""

    seconds: float = SECONDS
    """Time limit per answer; beyond it the outcome is `timeout`."""
    digits: int = 6
    """Number of decimals to which inexact numbers must agree."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ConfigError(f"seconds is {self.seconds}; it must be above 0.", param="seconds")
        if not 0 <= self.digits <= 50:
            raise ConfigError(f"digits is {self.digits}; it must be from 0 to 50.", param="digits")
        needs("math_verify", "math-verify")

    def check_sample(self, sample: Sample) -> None:
        if not all(reference.strip() for reference in references_of(sample)):
            raise InvalidRequest("the reference answer is empty.", param="reference")

    async def score(self, sample: Sample) -> Score:
        references = list(references_of(sample))
        answer = final(sample.completion)
        if any(plainly_equal(answer, reference) for reference in references):
            return _scored(True, True)
        if not answer.strip() or len(answer) > max(LONGEST, TAIL):
            return _scored(False, False)
        where = f"{__name__}:verified"
        try:
            found, correct = await pool.call(where, references, answer, self.digits, seconds=self.seconds)
        except TimeoutError as error:
            return Score("timeout", 0.0, detail=str(error))
        return _scored(found, correct)


def final(text: str) -> str:
    """The last box, as `\\boxed{...}`; else the end of the text."""
    box = boxed(text)
    return rf"\boxed{{{box}}}" if box is not None else text[-TAIL:]


def plainly_equal(answer: str, reference: str) -> bool:
    """Whether the texts are identical or the same number, without math-verify. False means undecided."""
    inside, right_inside = boxed(answer), boxed(reference)
    given = " ".join((last_line(answer) or "" if inside is None else inside).split())
    right = " ".join((reference if right_inside is None else right_inside).split())
    if not right or "%" in given + right:  # math-verify decides whether 50% is 50 or a half
        return False
    number = parse_number(given)
    return given == right or (number is not None and number == parse_number(right))


def verified(references: list[str], answer: str, digits: int) -> list[bool]:
    """(the text contains an answer, the answer is one of the references). It runs in the pool: it has no limit of its
    own."""
    import math_verify

    given = _parsed(answer)
    for reference in references:
        expected = _parsed_reference(reference)
        # math-verify's own time limits use signals and count a time-out as a wrong answer
        if given and math_verify.verify(expected, given, float_rounding=digits, timeout_seconds=None):
            return [True, True]
    return [bool(given), False]


@lru_cache(4096)
def _parsed_reference(reference: str) -> Any:
    """Parses the text unchanged, and on failure as LaTeX: a reference may lack the dollar signs."""
    text = reference if boxed(reference) is not None or "$" in reference else rf"\boxed{{{reference}}}"
    found = _parsed(text) or _parsed(reference)
    if not found:
        raise InvalidRequest(
            f"the reference {reference[:100]!r} cannot be read as mathematics.", param="reference"
        )
    return found


def _parsed(text: str) -> Any:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # an answer in a box has priority over other mathematics
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return parse(text, targets, parsing_timeout=None)


def _scored(found: bool, correct: bool) -> Score:
    detail = "" if correct else "not equal to the reference" if found else "no answer found"
    return Score("ok", float(correct), {"found": float(found), "correct": float(correct)}, detail)
