"""Reading answers out of completions and comparing them."""

import asyncio
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders import AnswerMatcher, Sample, Score
from rondo.graders.rules.match import boxed, last_line, normalise
from rondo.graders.rules.numbers import last_number, parse_number


def score(completion: str, reference: str | tuple[str, ...] | None, **options: Any) -> Score:
    return asyncio.run(AnswerMatcher(**options).score(Sample("", completion, reference)))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is 42.", "42"),
        ("1 + 2 = 3", "3"),
        ("from 5 to -7", "-7"),
        ("5-3", "3"),
        ("(2)-3", "3"),
        ("costs $1,234.50 in all", "1,234.50"),
        ("答案是42。", "42"),
        ("答案是-42。", "-42"),
        ("half: 1/2", "1/2"),
        ("x1 is 6e-3 of v2", "6e-3"),
        ("well...42", "42"),
        ("it is .5", ".5"),
        ("−8", "-8"),
        ("none at all", None),
        ("", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", "1234.5"),
        (" -3/4 ", "-0.75"),
        (r"\frac{3}{4}", "0.75"),
        (r"$-\dfrac{1}{8}$", "-0.125"),
        (r"\frac{ 3 }{ 4 }", "0.75"),
        ("$5", "5"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("6e-3", "0.006"),
        ("+7.", "7"),
        ("1e9999", "1e9999"),
    ],
)
def test_parse_number(text: str, value: str) -> None:
    parsed = parse_number(text)
    assert parsed is not None
    assert parsed == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "x", "1 2", "1/0", "0/0", "--3", "1e99999", "3 apples", "nan", "inf", "0x10"]
)
def test_what_is_not_one_number(text: str) -> None:
    assert parse_number(text) is None


@given(st.integers(-(10**30), 10**30))
def test_any_integer_is_read_exactly(number: int) -> None:
    assert parse_number(str(number)) == number
    assert parse_number(f"{number:,}") == number
    assert last_number(f"it is {number:,}.") == f"{number:,}"


@given(st.text())
def test_nothing_makes_reading_fail(text: str) -> None:
    for read in (last_number, boxed, last_line, normalise, parse_number):
        read(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"thus \boxed{42}", "42"),
        (r"\boxed{1} and then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a} \boxed{b", "a"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"} \boxed {c}", "c"),
        ("{1}", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


NONSENSE = ["\\boxed{", "\\frac{ ", "\\frac{1}", "1,", "1,111", "9", "-", "1/", " "]


@pytest.mark.parametrize("unit", NONSENSE)
def test_long_nonsense_is_read_in_linear_time(unit: str) -> None:
    for text in (unit * 50_000, unit + " " * 200_000 + "!"):
        start = time.process_time()
        for read in (last_number, boxed, parse_number):
            read(text)
        assert time.process_time() - start < 5


def test_normalise() -> None:
    assert normalise('  "The  Ａnswer."\n') == "the answer"


def test_comparisons() -> None:
    assert score("Paris", "Paris", compare="exact").total == 1
    assert score("paris", "Paris", compare="exact").total == 0
    assert score(" paris. ", "Paris").total == 1
    assert score("London", ("Paris", "london")).total == 1
    assert (
        score("It is 3.1416", "3.14159", extract="last_number", compare="numeric", tolerance=1e-4).total == 1
    )
    assert score("It is 3.15", "3.14159", extract="last_number", compare="numeric", tolerance=1e-4).total == 0
    assert score("1,000,000", "1e6", compare="numeric").total == 1
    assert score("12345678901234567891", "12345678901234567890", compare="numeric").total == 0
    assert score("<answer> 4 </answer> or 5", "4", extract="answer_tag").total == 1
    assert score("thinking\n\nfox ", "fox", extract="last_line", compare="exact").total == 1


def test_parts_tell_a_missing_answer_from_a_wrong_one() -> None:
    missing = score("no idea", "4", extract="last_number")
    wrong = score("5", "4", extract="last_number")
    assert (missing.outcome, missing.parts) == ("ok", {"found": 0.0, "correct": 0.0})
    assert (wrong.outcome, wrong.parts) == ("ok", {"found": 1.0, "correct": 0.0})


def test_a_sample_that_cannot_be_judged_is_no_zero() -> None:
    with pytest.raises(InvalidRequest, match="no reference"):
        score("4", None)
    with pytest.raises(InvalidRequest, match="not a number"):
        score("4", "four", compare="numeric")


@pytest.mark.parametrize("options", [{"extract": "magic"}, {"compare": "fuzzy"}, {"tolerance": -1.0}])
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        AnswerMatcher(**options)
