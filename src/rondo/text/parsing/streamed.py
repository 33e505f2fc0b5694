"""Streaming of a call's arguments while the model writes them."""

from __future__ import annotations

import json
import re

from rondo.text.parsing.scan import taken

Tail = tuple[tuple[str, ...], ...]
"""Optional markers after a call, at most one of each group, in order."""

OPENED = r"\{\s*+[\"}]"
"""Start of JSON arguments: other text after a brace may be anything."""

_IN_STRING = re.compile(r'["\\\x00-\x1f]')
_OUTSIDE = re.compile(r'["{}\[\]]')


class JsonText:
    """Incremental JSON object. Control characters such as newlines inside its strings, which small models write and
    JSON forbids, are escaped."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> tuple[str, str | None]:
        """The part of `text` that belongs to the object, and the rest, or None if the object continues."""
        said: list[str] = []
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                said.append(text[at])
                at += 1
                continue
            mark = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if mark is None:
                said.append(text[at:])
                break
            said.append(text[at : mark.start()])
            at = mark.end()
            said.append(self._mark(mark[0]))
            if not self._in_string and self._depth == 0:
                return "".join(said), text[at:]
        return "".join(said), None

    def _mark(self, char: str) -> str:
        if char == '"':
            self._in_string = not self._in_string
        elif self._in_string:
            self._escaped = char == "\\"
            return char if self._escaped else json.dumps(char)[1:-1]
        else:
            self._depth += 1 if char in "{[" else -1
        return char


class StreamedCall:
    """A call from the start of its arguments to its end. `wrapped`: an enclosing object ends after the arguments."""

    def __init__(self, wrapped: bool, tail: Tail) -> None:
        self._arguments = True
        self._layers = [JsonText(), JsonText(1)] if wrapped else [JsonText()]
        self._tail = list(tail)
        self._kept: list[str] = []
        self._head = ""
        self.ended_by = ""
        """The last marker after the call."""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Adds text; returns the next piece of the arguments, and the text after the call once its end is known."""
        said = ""
        while self._layers:
            taken, rest = self._layers[0].take(text)
            if self._arguments:
                said = taken
            if rest is None:
                return said, None
            self._layers.pop(0)
            self._arguments, text = False, rest
        return said, self._after(text)

    def finish(self) -> str:
        """Text that was held back as a possible marker."""
        return taken(self._kept) + self._head

    def _after(self, text: str) -> str | None:
        self._keep(self._head + text)
        while self._tail:
            head = self._head
            found = next((marker for marker in self._tail[0] if head.startswith(marker)), None)
            if found is None and self._may_become_one(head):
                return None
            self._tail.pop(0)
            if found is not None:
                self.ended_by = found
                self._kept.clear()
                self._keep(head.removeprefix(found))
        return taken(self._kept) + self._head

    def _keep(self, text: str) -> None:
        """Separates leading whitespace, so that it is not scanned again."""
        self._head = text.lstrip()
        self._kept.append(text[: len(text) - len(self._head)])

    def _may_become_one(self, head: str) -> bool:
        return any(marker.startswith(head) and marker != head for group in self._tail for marker in group)
