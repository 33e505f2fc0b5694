"""Reasoning between two markers before the answer: `<think>...</think>`, `[THINK]...[/THINK]`."""

from __future__ import annotations

from typing import Literal

from rondo.text.parsing.parts import Content, Parser, Part, Reasoning
from rondo.text.parsing.scan import held_back


class Think:
    """Reasoning first, if there is any; what comes after it goes to `then`.

    `inside` says that the prompt has opened the reasoning already. Blanks around the markers are nobody's.
    """

    def __init__(self, opening: str, closing: str, inside: bool, then: Parser | None = None) -> None:
        self._opening = opening
        self._closing = closing
        self._inside = inside
        self._then = then
        self._text = ""
        self._phase: Literal["head", "reasoning", "answer"] = "head"
        self._trim = False

    @property
    def reasons(self) -> bool:
        return self._phase == "reasoning" or (self._phase == "head" and self._inside)

    def feed(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        if self._phase == "head":
            self._begin()
        if self._phase == "reasoning":
            self._reason(parts)
        if self._phase == "answer":
            self._answer(parts)
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        text, self._text = self._text, ""
        if self._phase == "reasoning" or (self._phase == "head" and self._inside):
            if text:
                parts.append(Reasoning(text))
        elif not self._trim:
            parts += self._pass_on(text)
        return parts + (self._then.finish() if self._then is not None else [])

    def _begin(self) -> None:
        """The opening may be written even where the prompt has it already."""
        text = self._text.lstrip()
        if not text or (len(text) < len(self._opening) and self._opening.startswith(text)):
            return
        if self._inside or text.startswith(self._opening):
            self._text = text.removeprefix(self._opening)
            self._phase, self._trim = "reasoning", True
        else:
            self._phase = "answer"

    def _reason(self, parts: list[Part]) -> None:
        self._trimmed()
        text, closing = self._text, self._closing
        end = text.find(closing)
        solid = text[: end if end >= 0 else len(text) - held_back(text, [closing])].rstrip()
        if solid:
            parts.append(Reasoning(solid))
        if end < 0:
            self._text = text[len(solid) :]
        else:
            self._text = text[end + len(closing) :]
            self._phase, self._trim = "answer", True

    def _answer(self, parts: list[Part]) -> None:
        self._trimmed()
        text, self._text = self._text, ""
        parts += self._pass_on(text)

    def _trimmed(self) -> None:
        if self._trim:
            self._text = self._text.lstrip()
            self._trim = not self._text

    def _pass_on(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Content(text)] if self._then is None else self._then.feed(text)
