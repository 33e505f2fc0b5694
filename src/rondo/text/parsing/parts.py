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
    """`arguments` is the text of a JSON object. `id` is there if the model wrote one."""

    name: str
    arguments: str
    id: str | None = None


Part = Content | Reasoning | Call


class Parser(Protocol):
    """Reads one answer. However its text is cut, the parts are the same, but for where texts are divided.

    Calls come whole: what turns out to be none, or is cut off, can so still be content, and nothing is lost.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain by now."""

    def finish(self) -> list[Part]:
        """The rest, at the end."""
