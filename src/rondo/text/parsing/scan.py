"""Search for markers, and for the end of JSON, in growing text."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_HEAD = 512
"""Maximum characters of a streamable call's head; a call with a longer head is emitted whole."""
PIECE = 4096
"""Longer texts are processed in pieces, because the cost for each marker grows with the length of the remaining
text."""

_STRUCTURE = re.compile(r'["\\{}\[\]]')


def first_of(text: str, markers: Iterable[str]) -> int:
    """Index of the first of the markers; -1 if there is none."""
    return min((at for marker in markers if (at := text.find(marker)) >= 0), default=-1)


def taken(pieces: list[str]) -> str:
    """Joins the pieces and clears the list."""
    text = "".join(pieces)
    pieces.clear()
    return text


def held_back(text: str, markers: Iterable[str]) -> int:
    """Length of the longest suffix of `text` that may become a marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    at = max(len(text) - len(marker) + 1, 0)
    while (at := text.find(marker[0], at)) >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0


class JsonScan:
    """Incremental scan for the end of a JSON object or array."""

    def __init__(self) -> None:
        self.in_string = False
        self._depth = 0
        self._escapes = False

    def feed(self, text: str, start: int = 0, stop: int | None = None) -> int | None:
        """Index of the value's end in `text` from `start`; None if it is not reached. Text after the end is covered by
        the next call."""
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
