"""Content with calls that start with a marker, the format of most models."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Protocol

from rondo.text.parsing.forced import CallSyntax, Grammar, json_arguments
from rondo.text.parsing.parts import ArgumentsDelta, Call, Content, Part
from rondo.text.parsing.scan import LONGEST_HEAD, PIECE, held_back, taken
from rondo.text.parsing.streamed import StreamedCall, Tail

Tools = Sequence[Mapping[str, Any]]
"""Functions that may be called: `name` and `parameters`, a JSON schema."""


class CallBlock(Protocol):
    """An open block of calls."""

    def feed(self, text: str) -> int | None:
        """Adds text, the start marker first; returns the block's end as an index from its start, or None if it is not
        reached."""


class CallFormat(ABC):
    starts: ClassVar[tuple[str, ...]]
    """Markers that start a block."""
    head_starts: ClassVar[tuple[str, ...]] = ()
    """Markers that start a block only at the start of the answer or after another call."""
    noise: ClassVar[tuple[str, ...]] = ()
    """Markers around calls without a meaning of their own."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Markers inside a block."""
    openings: ClassVar[tuple[re.Pattern[str], ...]] = ()
    """Patterns for the start of calls whose arguments can be streamed: groups `name`, `arguments` (their start), `id`
    if the model writes one, and `object` if an object encloses name and arguments."""
    tail: ClassVar[Tail] = ()
    """Markers after a streamed call."""

    def __init__(self, tools: Tools) -> None:
        self.tools = {tool["name"]: tool.get("parameters") or {} for tool in tools}

    @abstractmethod
    def block(self) -> CallBlock: ...

    def begins(self, text: str) -> re.Match[str] | None:
        """A match for the start of a call that can be streamed; `text` is the text of a block."""
        found = (opening.match(text) for opening in self.openings)
        return next((match for match in found if match is not None), None)

    def ends(self, begun: re.Match[str]) -> Tail:
        """Markers after a call with this start."""
        return self.tail

    def heads_after(self, marker: str) -> tuple[str, ...]:
        """Markers that may directly start the next call if the last one ended with `marker`."""
        return self.head_starts

    @abstractmethod
    def calls(self, text: str) -> list[Call] | None:
        """The calls in a block, whose end may be missing; None if it is invalid."""

    @abstractmethod
    def shape(self, template: str) -> CallSyntax:
        """Syntax of calls for a model with that chat template, for forced calls."""

    def arguments(self, grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
        """Adds the rule of a function's arguments."""
        return json_arguments(grammar, rule, function)


class MarkedCalls:
    reasons = may_reason = False

    def __init__(self, format: CallFormat) -> None:
        self._format = format
        self._markers = (*format.starts, *format.noise)
        self._blanks = _any_of("\\s", *map(re.escape, format.noise))
        self._backwards = _any_of("\\s", *(re.escape(marker[::-1]) for marker in format.noise))
        self._starting = re.compile("|".join(map(re.escape, format.starts)))
        self._text = ""
        self._block: CallBlock | None = None
        # Pieces of an open block, joined once its kind is known, because it may be long.
        self._open: list[str] = []
        self._may_begin = True
        self._streamed: StreamedCall | None = None
        self._heads = format.head_starts
        # Whitespace and noise: part of the content only if more content follows, and not a call.
        self._blank: list[str] = []
        self._at_head = True
        self._after_call = False

    def reasons_through(self, text: str) -> bool:
        return False

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for at in range(0, len(text), PIECE):
            self._text += text[at : at + PIECE]
            while self._step(parts):
                pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        text, self._text = self._text, ""
        if self._streamed is not None:
            self._say(self._streamed.finish(), parts)
        elif self._block is None:
            self._say(text, parts)
        else:
            self._block = None
            self._resolve(taken(self._open) + text, parts)
        blank = taken(self._blank)
        if blank and not self._after_call:
            parts.append(Content(blank))
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """One step; returns whether there may be more to do."""
        if self._streamed is not None:
            return self._go_on(self._streamed, parts)
        if self._block is not None:
            return self._read_on(self._block, parts)
        text = self._text
        start = self._start(text)
        certain = len(text) - held_back(text, self._markers) if start is None else start
        self._say(text[:certain], parts)
        self._text = text[certain:]
        if start is None:
            return False
        self._block, self._may_begin = self._format.block(), True
        return True

    def _read_on(self, block: CallBlock, parts: list[Part]) -> bool:
        text, self._text = self._text, ""
        self._open.append(text)
        end = block.feed(text)
        begun = self._begun()
        if begun is not None and (end is None or begun.end() <= end):
            self._begin(begun, parts)
            return True
        if end is None:
            return False
        text = taken(self._open)
        self._block, self._text = None, text[end:]
        self._resolve(text[:end], parts)
        return True

    def _begun(self) -> re.Match[str] | None:
        """A match for a call that can be streamed. Searched until the head exceeds the limit, not to the end of a long
        block."""
        if not self._may_begin:
            return None
        text = taken(self._open)
        self._open.append(text)
        self._may_begin = len(text) < LONGEST_HEAD
        return self._format.begins(text[:LONGEST_HEAD])

    def _begin(self, begun: re.Match[str], parts: list[Part]) -> None:
        groups = begun.groupdict()
        parts.append(Call(begun["name"], "", groups.get("id")))
        self._block = None
        self._streamed = StreamedCall(groups.get("object") is not None, self._format.ends(begun))
        self._text = taken(self._open)[begun.start("arguments") :]
        self._called()

    def _go_on(self, call: StreamedCall, parts: list[Part]) -> bool:
        said, rest = call.feed(self._text)
        self._text = rest or ""
        if said:
            parts.append(ArgumentsDelta(said))
        if rest is None:
            return False
        self._streamed = None
        self._heads = self._format.heads_after(call.ended_by)
        return True

    def _start(self, text: str) -> int | None:
        if self._at_head:
            blanks = self._blanks.match(text)
            head = blanks.end() if blanks else 0
            if text.startswith(self._heads, head):
                return head
        start = self._starting.search(text)
        return None if start is None else start.start()

    def _say(self, text: str, parts: list[Part]) -> None:
        blanks = self._backwards.match(text[::-1])
        solid = len(text) - (blanks.end() if blanks else 0)
        if solid:
            parts.append(Content(taken(self._blank) + text[:solid]))
            self._at_head = self._after_call = False
        self._blank.append(text[solid:])

    def _resolve(self, raw: str, parts: list[Part]) -> None:
        """Emits the block's calls if it is valid; else each piece from marker to marker is parsed, or emitted as
        content."""
        if self._call(raw, parts):
            return
        cuts = [start.start() for start in self._starting.finditer(raw, 1)]
        for at, end in pairwise([0, *cuts, len(raw)]):
            if not self._call(raw[at:end], parts):
                self._say(raw[at:end], parts)

    def _call(self, raw: str, parts: list[Part]) -> bool:
        calls = self._format.calls(raw)
        if not calls:
            return False
        parts += calls
        self._called()
        return True

    def _called(self) -> None:
        self._blank.clear()
        self._at_head = self._after_call = True


def _any_of(*choices: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(choices)})*")
