"""Multiple choice: whether a completion chooses the right letter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders.rules.format import tag_content
from rondo.graders.rules.match import boxed
from rondo.graders.score import Sample, Score, references_of

MARKS = " \t\n*_`$().:,;[]{}\"'"
"""Characters that may surround a letter."""


def chosen(text: str, letters: str = "ABCD") -> str | None:
    """The letter that a text chooses, by the most explicit statement first; None without a choice.

    `\\boxed{B}`; `<answer>B</answer>`; the last "answer is (B)" or "Answer: B"; a last or first line that is a letter,
    or starts with a letter and a mark, as "B) the moon".
    """
    for inside in (boxed(text), tag_content(text, "answer")):
        if inside is not None:
            return _alone(inside, letters)
    said = _said(letters).findall(text)
    if said:
        return str(said[-1][-1]).upper()
    lines = text.strip().splitlines()
    for line in (lines[-1], lines[0]) if lines else ():
        if letter := _alone(line, letters):
            return letter
    return None


@dataclass(frozen=True)
class ChoiceGrader:
    """Parts: `found` (the completion has a letter) and `correct`, which is the total."""

    letters: str = "ABCD"

    def __post_init__(self) -> None:
        if (
            not self.letters.isalpha()
            or not self.letters.isascii()
            or len(set(self.letters)) != len(self.letters)
        ):
            raise ConfigError(
                f"letters is {self.letters!r}; it must be letters such as ABCD.", param="letters"
            )
        if self.letters != self.letters.upper():
            raise ConfigError(f"letters must be capitals: {self.letters.upper()}.", param="letters")

    def check_sample(self, sample: Sample) -> None:
        self._right(sample)

    def _right(self, sample: Sample) -> set[str | None]:
        """The right letters."""
        right = {_alone(reference, self.letters) for reference in references_of(sample)}
        if None in right:
            raise InvalidRequest(
                f"the reference {sample.reference!r} is none of the letters {self.letters}.",
                param="reference",
            )
        return right

    async def score(self, sample: Sample) -> Score:
        right = self._right(sample)
        letter = chosen(sample.completion, self.letters)
        parts = {"found": float(letter is not None), "correct": float(letter in right)}
        return Score("ok", parts["correct"], parts, f"chose {letter}" if letter else "no letter found")


def _alone(text: str, letters: str) -> str | None:
    """The letter that is the whole line, or that starts the line before a mark."""
    line = text.strip(MARKS)
    if len(line) == 1:
        return line.upper() if line.upper() in letters else None
    begun = _begun(letters).match(text.strip())
    return begun.group(1) if begun else None


@lru_cache(32)
def _said(letters: str) -> re.Pattern[str]:
    """After "is" the letter must be a capital: "the answer is a moon" contains no choice."""
    mark = r"[*_`$\"'(\[]{0,4}"
    after_is = (
        rf"\s{{1,4}}is\s{{0,4}}:?\s{{0,4}}{mark}(?i:the\s)?(?i:option|choice|letter)?\s?{mark}[{letters}]"
    )
    after_colon = rf"[*_`]{{0,3}}\s{{0,4}}:\s{{0,4}}{mark}\s{{0,4}}{mark}[{letters}{letters.lower()}]"
    return re.compile(rf"\b(?i:answer|choice|option)(?:{after_is}|{after_colon})(?![A-Za-z0-9'’])")


@lru_cache(32)
def _begun(letters: str) -> re.Pattern[str]:
    return re.compile(rf"[*_(\[]{{0,3}}([{letters}])[)\].:,]")
