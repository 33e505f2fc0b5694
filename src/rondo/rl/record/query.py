"""Conditions on rollouts: `reward>0.5`, `correct=1`, `finish_reason=length`, `text~sorry`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import InvalidRequest

NUMBERS = ("step", "sample", "reward", "advantage", "prompt_tokens", "tokens", "sampled", "version")
WORDS = ("id", "problem", "outcome", "finish_reason")
TEXT = ("text", "prompt", "detail")
OWN = (*NUMBERS, *WORDS, *TEXT)
"""Fields of every rollout; any other name is a part of the reward."""
NONE = "none"
"""Value of a missing field: `reward=none` selects samples without a valid score."""
FORM = re.compile(r"\s*([^<>=!~]+?)\s*(>=|<=|!=|==|=|>|<|~)\s*(.*?)\s*", re.DOTALL)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class RolloutSummary:
    """A rollout without its texts and tokens."""

    id: str
    step: int
    problem: str
    """Name of the problem, equal in every step."""
    outcome: str | None
    reward: float | None
    parts: Mapping[str, float]
    advantage: float | None
    """Mean advantage of its tokens; None if the sample was not trained on."""
    finish_reason: str
    prompt_tokens: int
    tokens: int
    sampled: int
    """Number of sampled tokens."""
    versions: Sequence[int]
    """The oldest and the newest weight version of its tokens."""
    pieces: Sequence[Sequence[int]]
    """Places of its tokens among the problem's tokens: one `store.Place` per segment."""

    @classmethod
    def of(cls, fact: Mapping[str, Any]) -> RolloutSummary:
        return cls(**fact)

    @property
    def group(self) -> int:
        return int(self.id.split("-")[1])

    @property
    def sample(self) -> int:
        return int(self.id.split("-")[2])


@dataclass(frozen=True)
class Texts:
    messages: Sequence[Mapping[str, Any]]
    facts: Any
    """The problem's facts."""
    text: str
    detail: str
    """The grader's explanation."""

    @property
    def prompt(self) -> str:
        return "\n".join(str(message.get("content") or "") for message in self.messages)


@dataclass(frozen=True)
class Condition:
    name: str
    sign: str
    value: str

    @classmethod
    def of(cls, text: str) -> Condition:
        found = FORM.fullmatch(text)
        if found is None:
            raise InvalidRequest(
                f"{text!r} is no condition: write a name, one of > >= < <= = != ~ and a value, such as reward>0.5 or "
                "text~sorry.",
                param="where",
            )
        name, sign, value = found[1], found[2].replace("==", "="), found[3]
        made = cls(name, sign, value)
        made._check()
        return made

    @property
    def on_text(self) -> bool:
        return self.name in TEXT

    def meets(self, entry: RolloutSummary) -> bool:
        if self.name in WORDS:
            own = getattr(entry, self.name)
            return self._says(NONE if own is None else own)
        return self.compares(number(entry, self.name))

    def compares(self, own: float | None) -> bool:
        if self.value == NONE:
            return (own is None) == (self.sign == "=")
        return own is not None and COMPARISONS[self.sign](own, float(self.value))

    def reads(self, texts: Texts) -> bool:
        return self._says(getattr(texts, self.name))

    def _says(self, own: str) -> bool:
        if self.sign == "~":
            return self.value.casefold() in own.casefold()
        if self.name == "problem":
            own = own[: len(self.value)]
        return COMPARISONS[self.sign](own, self.value)

    def _check(self) -> None:
        words = self.name in WORDS or self.on_text
        if not words and self.value != NONE and not _is_number(self.value):
            raise InvalidRequest(
                f"{self.name} is a number, and {self.value!r} is none. Texts are looked for with text~..., words are "
                f"{', '.join(WORDS)}.",
                param="where",
            )
        allowed = "= != ~" if words else "= !=" if self.value == NONE else " ".join(COMPARISONS)
        if self.sign not in allowed.split():
            raise InvalidRequest(
                f"{self.name}{self.sign}{self.value} has no meaning: {self.name} takes {allowed}.",
                param="where",
            )


def number(entry: RolloutSummary, name: str) -> float | None:
    """A numeric field or a part of the reward; None if it is missing or not finite."""
    value: float | None
    if name == "version":
        value = entry.versions[-1] if entry.versions else None
    else:
        value = getattr(entry, name) if name in NUMBERS else entry.parts.get(name)
    return value if value is not None and math.isfinite(value) else None


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
