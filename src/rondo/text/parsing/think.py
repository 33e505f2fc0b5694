"""Reasoning between two markers before the answer: `<think>...</think>`, `[THINK]...[/THINK]`."""

from __future__ import annotations

from typing import Literal

from rondo.text.parsing.parts import Content, OutputParser, Part, Reasoning
from rondo.text.parsing.scan import held_back, taken


class Think:
    """Parser of optional reasoning at the start; the rest is passed to `then`.

    With `inside`, the prompt has opened the reasoning already. Whitespace around the markers is dropped.
    """

    def __init__(self, opening: str, closing: str, inside: bool, then: OutputParser | None = None) -> None:
        self._opening = opening
        self._closing = closing
        self._inside = inside
        self._then = then
        # Whitespace that may be part of the following text, and then a possible start of a marker.
        self._blank: list[str] = []
        self._text = ""
        self._phase: Literal["head", "reasoning", "answer"] = "head"
        self._trim = False

    @property
    def reasons(self) -> bool:
        return self._phase == "reasoning" or (self._phase == "head" and self._inside)

    def reasons_through(self, text: str) -> bool:
        return self._phase == "reasoning" and not self._text and self._closing[0] not in text

    @property
    def may_reason(self) -> bool:
        return self._phase != "answer"

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
        text, self._text = taken(self._blank) + self._text, ""
        if self._phase == "reasoning" or (self._phase == "head" and self._inside):
            if text:
                parts.append(Reasoning(text))
        elif not self._trim:
            parts += self._pass_on(text)
        return parts + (self._then.finish() if self._then is not None else [])

    def _begin(self) -> None:
        """Detects the opening marker, which a model may repeat after the prompt."""
        text = self._text.lstrip()
        self._blank.append(self._text[: len(self._text) - len(text)])
        self._text = text
        if not text or (len(text) < len(self._opening) and self._opening.startswith(text)):
            return
        if self._inside or text.startswith(self._opening):
            self._blank.clear()
            self._text = text.removeprefix(self._opening)
            self._phase, self._trim = "reasoning", True
        else:
            self._text = taken(self._blank) + text
            self._phase = "answer"

    def _reason(self, parts: list[Part]) -> None:
        self._trimmed()
        text, closing = self._text, self._closing
        end = text.find(closing)
        certain = end if end >= 0 else len(text) - held_back(text, [closing])
        solid = text[:certain].rstrip()
        if solid:
            parts.append(Reasoning(taken(self._blank) + solid))
        self._blank.append(text[len(solid) : certain])
        self._text = text[certain:]
        if end >= 0:
            self._blank.clear()
            self._text = self._text.removeprefix(closing)
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
