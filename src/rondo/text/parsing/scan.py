"""Looking for markers, and for the end of JSON, in text that is still growing."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_HEAD = 512
"""The characters in which a call must have begun to be given as it comes; one whose head is longer comes whole."""
PIECE = 4096
"""Longer texts are read in pieces: what is done for each marker in one costs as much as the rest of it is long."""

_STRUCTURE = re.compile(r'["\\{}\[\]]')


def first_of(text: str, markers: Iterable[str]) -> int:
    """Where the first of the markers is; -1 if there is none."""
    return min((at for marker in markers if (at := text.find(marker)) >= 0), default=-1)


def taken(pieces: list[str]) -> str:
    """What they are together; the list is empty then."""
    text = "".join(pieces)
    pieces.clear()
    return text


def held_back(text: str, markers: Iterable[str]) -> int:
    """The length of the longest end of `text` that may become a marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    at = max(len(text) - len(marker) + 1, 0)
    while (at := text.find(marker[0], at)) >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0


class JsonScan:
    """Walks once over a JSON object or array that comes in pieces."""

    def __init__(self) -> None:
        self.in_string = False
        self._depth = 0
        self._escapes = False

    def feed(self, text: str, start: int = 0, stop: int | None = None) -> int | None:
        """Where in `text`, from `start` on, the value ends; None if it does not yet. What lies behind its end is told
        of when it is fed again."""
        stop = len(text) if stop is None else stop
        at = min(start + self._escapes, stop)
        self._escapes = self._escapes and start == stop
        while (match := _STRUCTURE.search(text, at, stop)) is not None:
            at = match.end()
            char = match[0]
            if self.in_string:
                if char == "\\":
                    self._escapes = at == stop
                    at = min(at + 1, stop)
                elif char == '"':
                    self.in_string = False
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at
        return None
