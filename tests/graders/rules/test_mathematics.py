"""Answers in mathematics, as math-verify reads them, in processes that may be lost."""

import asyncio
from typing import Any

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, InvalidRequest, MissingExtra
from rondo.graders import Sample, Score, extras
from rondo.graders.rules.mathematics import MathAnswer, final, plainly_equal

installed = pytest.mark.skipif(
    extras.find_spec("math_verify") is None, reason="needs math-verify, which `make test` installs"
)


def score(completion: str, reference: str | tuple[str, ...] | None, **options: Any) -> Score:
    return asyncio.run(MathAnswer(**options).score(Sample("", completion, reference)))


def scores(pairs: list[tuple[str, str]]) -> list[Score]:
    async def all_of_them() -> list[Score]:
        grader = MathAnswer(seconds=30)
        return list(await asyncio.gather(*(grader.score(Sample("", *pair)) for pair in pairs)))

    return asyncio.run(all_of_them())


EQUAL = [
    (r"so \boxed{\frac{1}{2}}", "1/2"),
    (r"so \boxed{0.5}", r"\frac{1}{2}"),
    (r"so \boxed{0.5}", r"$\frac12$"),
    (r"\boxed{2\sqrt{2}}", r"\sqrt{8}"),
    (r"\boxed{x^2 + 2x + 1}", "(x+1)^2"),
    (r"\boxed{\{1, 2\}}", r"\{2, 1\}"),
    (r"\boxed{(1, 2)}", "(1,2)"),
    (r"\boxed{[0, 1)}", "[0,1)"),
    (r"\boxed{x = 5}", "5"),
    (r"\boxed{1{,}234}", "1234"),
    (r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"First \boxed{3}, no: \boxed{4}", "4"),
    ("The final answer is $\\frac{3}{4}$. I hope it is correct.", "0.75"),
    ("1 + 1 = 2\nThe answer is 42", "42"),
    (r"\boxed{\frac{\pi}{3}}", r"\pi/3"),
    (r"\boxed{50\%}", r"50\%"),
]
DIFFERENT = [
    (r"\boxed{\frac{1}{3}}", "1/2"),
    (r"\boxed{5} \boxed{4}", "5"),
    (r"\boxed{1, 2, 3, 4}", "4"),
    (r"\boxed{(1, 2)}", "(2, 1)"),
    (r"\boxed{[0, 1]}", "[0,1)"),
    (r"\boxed{X}", "Y"),
    ("I do not know", "42"),
    ("", "42"),
    (r"\boxed{}", "42"),
    (r"\boxed{42", "43"),
]


@installed
def test_equal_and_different() -> None:
    found = scores([*EQUAL, *DIFFERENT])
    assert [each.outcome for each in found] == ["ok"] * len(found)
    right = dict(zip([*EQUAL, *DIFFERENT], [each.total for each in found], strict=True))
    assert [pair for pair in EQUAL if right[pair] != 1] == []
    assert [pair for pair in DIFFERENT if right[pair] != 0] == []


@installed
def test_any_of_several_references_will_do() -> None:
    assert score(r"\boxed{\frac{2}{4}}", ("7", "1/2")).total == 1
    assert score(r"\boxed{\frac{2}{4}}", ("7", "1/3")).parts == {"found": 1.0, "correct": 0.0}


@installed
def test_what_sympy_cannot_finish_is_a_timeout_and_holds_up_nobody() -> None:
    async def both() -> tuple[Score, Score]:
        hanging = MathAnswer(seconds=1.0).score(Sample("", r"\boxed{9^{9^{9^{9}}}}", "3"))
        fine = MathAnswer(seconds=30).score(Sample("", r"\boxed{\frac{4}{2}}", "2"))
        return await hanging, await fine

    late, fine = asyncio.run(both())
    assert late.outcome in ("timeout", "ok")
    assert late.total == 0
    assert fine.total == 1


@installed
@pytest.mark.parametrize("answer", GARBAGE)
def test_garbage_is_wrong(answer: str) -> None:
    for text in (answer, rf"\boxed{{{answer}}}"):
        found = score(text, "17", seconds=20)
        assert (found.outcome, found.total) == ("ok", 0.0), found


@installed
def test_ten_megabytes_are_read_from_their_end() -> None:
    assert score("1 + 1 " * 1_700_000 + r"\boxed{\frac{4}{2}}", "2").total == 1
    assert score(r"\boxed{" + "1+" * 5_000_000 + "1}", "2").total == 0


@installed
def test_a_sample_that_cannot_be_judged_is_no_zero() -> None:
    with pytest.raises(InvalidRequest, match="no reference"):
        score("4", None)
    with pytest.raises(InvalidRequest, match="cannot be read") as wrong:
        score("4", "")
    assert wrong.value.param == "reference"


@installed
@pytest.mark.parametrize("options", [{"seconds": 0}, {"digits": -1}])
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        MathAnswer(**options)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"math-verify .*rondo-lab\[graders\]"):
        MathAnswer()


@pytest.mark.parametrize(
    ("text", "reference", "equal"),
    [
        (r"\boxed{ 1/2 }", "0.5", True),
        (r"\boxed{1,234}", "1234", True),
        ("thus\n42", r"\boxed{42}", True),
        (r"\boxed{x + y}", "x + y", True),
        (r"\boxed{X}", "x", False),
        (r"\boxed{50%}", "50", False),
        (r"\boxed{}", "", False),
        ("", "", False),
        ("4 2", "42", False),
    ],
)
def test_what_is_equal_as_it_stands(text: str, reference: str, equal: bool) -> None:
    assert plainly_equal(final(text), reference) is equal
