"""Exact and numeric match of an answer."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders.rules.format import tag_content
from rondo.graders.rules.numbers import close, last_number, parse_number
from rondo.graders.score import Sample, Score, references_of

Extract = Literal["all", "last_number", "boxed", "answer_tag", "last_line"]
Compare = Literal["exact", "normalised", "numeric"]

_SHORT = 1000
_PAST_COMBINING = 0x1F000
_BRACES = re.compile(r"\\boxed\s*\{|[{}]")


def boxed(text: str) -> str | None:
    """Content of the last complete `\\boxed{...}`; braces inside it balance."""
    opened: list[re.Match[str]] = []
    best: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace.group() != "}":
            opened.append(brace)
        elif opened:
            opening = opened.pop()
            if len(opening.group()) > 1 and (best is None or opening.end() > best[0]):
                best = (opening.end(), brace.start())
    return None if best is None else text[slice(*best)].strip()


def last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


def normalise(text: str) -> str:
    """The text with normalized case, spacing, character width and enclosing punctuation."""
    text = " ".join(_composed(text).casefold().split())
    return text.strip(" .,;:!?\"'`*_")


def _composed(text: str) -> str:
    """NFKC, which takes quadratic time for a run of combining characters. Unicode's stream-safe format allows 30 in a
    row; a text with more is no natural text and is returned unchanged."""
    if text.isascii() or (len(text) > _SHORT and _combining_run().search(text)):
        return text
    return unicodedata.normalize("NFKC", text)


@cache
def _combining_run() -> re.Pattern[str]:
    found = (chr(code) for code in range(0x300, _PAST_COMBINING))
    combining = [each for each in found if unicodedata.combining(unicodedata.normalize("NFKD", each)[0])]
    return re.compile(f"[{''.join(combining)}]{{31}}")


_EXTRACT: dict[Extract, Callable[[str], str | None]] = {
    "all": str,
    "last_number": last_number,
    "boxed": boxed,
    "answer_tag": lambda text: tag_content(text, "answer"),
    "last_line": last_line,
}


@dataclass(frozen=True)
class AnswerMatcher:
    """Parts: `found` (the completion has an answer) and `correct`, which is the total."""

    extract: Extract = "all"
    compare: Compare = "normalised"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.extract not in _EXTRACT:
            raise ConfigError(f"extract is {self.extract!r}; it must be one of {', '.join(_EXTRACT)}.")
        if self.compare not in ("exact", "normalised", "numeric"):
            raise ConfigError(f"compare is {self.compare!r}; it must be exact, normalised or numeric.")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance is {self.tolerance}; it must be at least 0 and below 1.")

    def check_sample(self, sample: Sample) -> None:
        for reference in references_of(sample):
            self.equal("", reference)  # raises for a reference that is not a number, if numbers are compared

    async def score(self, sample: Sample) -> Score:
        references = references_of(sample)
        answer = _EXTRACT[self.extract](sample.completion)
        correct = answer is not None and any(self.equal(answer, reference) for reference in references)
        parts = {"found": float(answer is not None), "correct": float(correct)}
        detail = "no answer found" if answer is None else f"answered {answer[:100]!r}"
        return Score("ok", parts["correct"], parts, detail)

    def equal(self, answer: str, reference: str) -> bool:
        if self.compare == "exact":
            return answer == reference
        if self.compare == "normalised":
            return normalise(answer) == normalise(reference)
        expected = parse_number(reference)
        if expected is None:
            raise InvalidRequest(f"the reference {reference[:100]!r} is not a number.", param="reference")
        value = parse_number(answer)
        return value is not None and close(value, expected, self.tolerance)
