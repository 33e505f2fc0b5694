"""Looking for markers, and for the end of JSON, in text that is still growing."""

from __future__ import annotations

import re
from collections.abc import Iterable

_STRUCTURE = re.compile(r'["\\{}\[\]]')


def first_of(text: str, markers: Iterable[str], start: int = 0) -> int:
    """Where the first of the markers is; -1 if there is none."""
    return min((at for marker in markers if (at := text.find(marker, start)) >= 0), default=-1)


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
    """Walks once over a JSON object or array, however often its text has grown meanwhile."""

    def __init__(self, start: int = 0) -> None:
        self.in_string = False
        self._at = start
        self._depth = 0

    def end(self, text: str) -> int | None:
        """Where the value ends; None if it does not yet."""
        return self.advance(text, len(text))

    def advance(self, text: str, stop: int) -> int | None:
        """Goes on to `stop`, or to where the value ends, and then says where."""
        while (match := _STRUCTURE.search(text, self._at, stop)) is not None:
            self._at = match.end()
            char = match[0]
            if self.in_string:
                if char == "\\":
                    self._at += 1  # Also where what it escapes is yet to come.
                elif char == '"':
                    self.in_string = False
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return self._at
        self._at = max(self._at, stop)
        return None
