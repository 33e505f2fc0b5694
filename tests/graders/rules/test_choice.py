"""Letters of questions with choices."""

import asyncio
import time

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders import Sample
from rondo.graders.rules.choice import ChoiceGrader, chosen


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" (b). ", "B"),
        ("**C**", "C"),
        ("B) the moon", "B"),
        ("B. the moon", "B"),
        (r"thus \boxed{D}", "D"),
        (r"\boxed{\text{D}}", None),
        ("<answer>A</answer>", "A"),
        ("<answer>A) Lima</answer>", "A"),
        ("The answer is B.", "B"),
        ("the correct answer is: (C)", "C"),
        ("The answer is **D**", "D"),
        ("Answer: a", "A"),
        ("**Answer:** $C$", "C"),
        ("The correct option is B because A is wrong", "B"),
        ("The answer is A. No wait, the answer is D.", "D"),
        ("A is a vowel.\nB", "B"),
        ("B\nsince it is so", "B"),
        ("The answer is a moon", None),
        ("The answer is Apple", None),
        ("A moon", None),
        ("I think it could be A or B", None),
        ("E", None),
        ("", None),
    ],
)
def test_what_a_text_chooses(text: str, letter: str | None) -> None:
    assert chosen(text) == letter


def test_a_box_says_more_than_a_sentence() -> None:
    assert chosen(r"The answer is A. \boxed{B}") == "B"
    assert chosen(r"The answer is A. \boxed{neither}") is None


def test_parts_tell_a_missing_answer_from_a_wrong_one() -> None:
    def parts(completion: str) -> dict[str, float]:
        return asyncio.run(ChoiceGrader("ABCDE").score(Sample("", completion, "(e)"))).parts

    assert parts("E") == {"found": 1.0, "correct": 1.0}
    assert parts("A") == {"found": 1.0, "correct": 0.0}
    assert parts("who knows") == {"found": 0.0, "correct": 0.0}


@pytest.mark.parametrize("reference", [None, "", "E", "Lima"])
def test_a_reference_that_is_no_letter(reference: str | None) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        asyncio.run(ChoiceGrader().score(Sample("", "A", reference)))
    assert wrong.value.param == "reference"


@pytest.mark.parametrize("letters", ["", "AA", "A1", "A-Z", "abc", "É"])
def test_letters_are_letters(letters: str) -> None:
    with pytest.raises(ConfigError, match="letters"):
        ChoiceGrader(letters)


@pytest.mark.parametrize("answer", GARBAGE)
def test_garbage_chooses_nothing(answer: str) -> None:
    found = chosen(answer)
    assert found is None or answer.strip().upper().startswith(found)


@pytest.mark.parametrize("unit", ["answer is ", "answer: ", "Answer : (", "A", "\\boxed{A ", "(", "* "])
def test_long_nonsense_is_read_in_linear_time(unit: str) -> None:
    begin = time.process_time()
    chosen(unit * 100_000)
    assert time.process_time() - begin < 5
