"""Parser outputs: the parts of an answer in order."""

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
    """A call. `arguments` is the text of a JSON object, or the start of one; `ArgumentsDelta` may follow. `id` is set
    if the model wrote one."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A further piece of the last call's arguments."""

    text: str


Part = Content | Reasoning | Call | ArgumentsDelta


class OutputParser(Protocol):
    """Parser of one answer. The parts do not depend on the chunking of the text, except for the division of texts.

    A call with JSON arguments is emitted once its name and first key are complete, and remains a call regardless of the
    following text. Other calls are emitted whole: an invalid one is emitted as content, and no text is lost.
    """

    def feed(self, text: str) -> list[Part]:
        """Adds text; returns the final parts so far."""

    def finish(self) -> list[Part]:
        """The remaining parts, at the end."""

    @property
    def reasons(self) -> bool:
        """Whether the following text is reasoning, as far as known."""

    def reasons_through(self, text: str) -> bool:
        """Whether the parser certainly remains in reasoning after `text`. Then a caller that needs only `reasons` may
        skip `feed`. False is always correct."""

    @property
    def may_reason(self) -> bool:
        """Whether reasoning may still follow; once False, it stays False."""
