"""What parsers give: the parts of an answer in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is the text of a JSON object, or of as much of it as is there; `ArgumentsDelta` may follow. `id` is
    there if the model wrote one."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the last call's."""

    text: str


Part = Content | Reasoning | Call | ArgumentsDelta


class OutputParser(Protocol):
    """Reads one answer. However its text is cut, the parts are the same, but for where texts are divided.

    A call whose arguments are written as JSON begins once its name and their first key are there, and is one then,
    whatever follows. Others come whole: what turns out to be none can so still be content, and nothing is lost.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain by now."""

    def finish(self) -> list[Part]:
        """The rest, at the end."""

    @property
    def reasons(self) -> bool:
        """Whether what comes next is reasoning, as far as one can know."""

    def reasons_through(self, text: str) -> bool:
        """Whether `text`, which comes next, is certain to leave it where it reasons. A parser that is asked for nothing
        but `reasons` need not be fed it then. False is always a right answer."""

    @property
    def may_reason(self) -> bool:
        """Whether reasoning may still come; where it may not, it never will."""
