"""Content with calls in it that begin with a marker: what most models write."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from rondo.text.parsing.forced import Grammar, Shape, json_arguments
from rondo.text.parsing.parts import Arguments, Call, Content, Part
from rondo.text.parsing.scan import first_of, held_back
from rondo.text.parsing.streamed import StreamedCall, Tail

Tools = Sequence[Mapping[str, Any]]
"""The functions that may be called: `name` and `parameters`, a JSON schema."""


class Block(Protocol):
    """One stretch of calls that has begun."""

    def end(self, text: str) -> int | None:
        """Where the block ends; None if not yet. `text` begins with its marker, and has only grown since last."""


class CallFormat(ABC):
    starts: ClassVar[tuple[str, ...]]
    """Markers that begin a block."""
    head_starts: ClassVar[tuple[str, ...]] = ()
    """Those that do so only where nothing but calls stands before them."""
    noise: ClassVar[tuple[str, ...]] = ()
    """Markers around calls that say nothing."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Markers inside a block."""
    openings: ClassVar[tuple[re.Pattern[str], ...]] = ()
    """How calls begin whose arguments can be given as they come: groups `name`, `arguments` (their beginning), `id` if
    the model writes one, and `object` where an object is around name and arguments."""
    tail: ClassVar[Tail] = ()
    """What follows them."""

    def __init__(self, tools: Tools) -> None:
        self.tools = {tool["name"]: tool.get("parameters") or {} for tool in tools}

    @abstractmethod
    def block(self) -> Block: ...

    def begins(self, text: str) -> re.Match[str] | None:
        """The beginning of a call that can be given as it comes; `text` is that of a block."""
        found = (opening.match(text) for opening in self.openings)
        return next((match for match in found if match is not None), None)

    def ends(self, begun: re.Match[str]) -> Tail:
        """What follows a call that began so."""
        return self.tail

    def heads_after(self, marker: str) -> tuple[str, ...]:
        """What may begin the next call at once, where the last one was ended by `marker`."""
        return self.head_starts

    @abstractmethod
    def calls(self, text: str) -> list[Call] | None:
        """What is called in a block, whose end may be missing; None if that cannot be read."""

    @abstractmethod
    def shape(self, template: str) -> Shape:
        """How a model with that chat template writes calls, where it must."""

    def arguments(self, grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
        """Adds the rule of what stands for a function's arguments."""
        return json_arguments(grammar, rule, function)


class MarkedCalls:
    reasons = False

    def __init__(self, format: CallFormat) -> None:
        self._format = format
        self._markers = (*format.starts, *format.noise)
        blanks = "|".join(["\\s", *map(re.escape, format.noise)])
        self._blanks = re.compile(f"(?:{blanks})*")
        self._text = ""
        self._block: Block | None = None
        self._streamed: StreamedCall | None = None
        self._heads = format.head_starts
        # Blanks and noise: part of the content only if more of it follows, and not a call.
        self._blank = ""
        self._at_head = True
        self._after_call = False

    def feed(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
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
            self._resolve(text, parts)
        if self._blank and not self._after_call:
            parts.append(Content(self._blank))
        self._blank = ""
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Whether there may be more to do."""
        if self._streamed is not None:
            return self._go_on(self._streamed, parts)
        text = self._text
        if self._block is not None:
            end = self._block.end(text)
            begun = self._format.begins(text)
            if begun is not None and (end is None or begun.end() <= end):
                self._begin(begun, parts)
                return True
            if end is None:
                return False
            self._block, self._text = None, text[end:]
            self._resolve(text[:end], parts)
            return True
        start = self._start(text)
        certain = len(text) - held_back(text, self._markers) if start is None else start
        self._say(text[:certain], parts)
        self._text = text[certain:]
        if start is None:
            return False
        self._block = self._format.block()
        return True

    def _begin(self, begun: re.Match[str], parts: list[Part]) -> None:
        groups = begun.groupdict()
        parts.append(Call(begun["name"], "", groups.get("id")))
        self._block = None
        self._streamed = StreamedCall(groups.get("object") is not None, self._format.ends(begun))
        self._text = self._text[begun.start("arguments") :]
        self._called()

    def _go_on(self, call: StreamedCall, parts: list[Part]) -> bool:
        said, rest = call.feed(self._text)
        self._text = rest or ""
        if said:
            parts.append(Arguments(said))
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
        start = first_of(text, self._format.starts)
        return None if start < 0 else start

    def _say(self, text: str, parts: list[Part]) -> None:
        whole = self._blank + text
        solid = self._without_blank_end(whole)
        self._blank = whole[len(solid) :]
        if solid:
            parts.append(Content(solid))
            self._at_head = self._after_call = False

    def _without_blank_end(self, text: str) -> str:
        while True:
            text = text.rstrip()
            ending = next((marker for marker in self._format.noise if text.endswith(marker)), None)
            if ending is None:
                return text
            text = text.removesuffix(ending)

    def _resolve(self, raw: str, parts: list[Part]) -> None:
        """Calls, if the block can be read; else what stands between its markers, each piece for itself."""
        if self._call(raw, parts):
            return
        while raw:
            cut = first_of(raw, self._format.starts, 1)
            piece, raw = (raw, "") if cut < 0 else (raw[:cut], raw[cut:])
            if not self._call(piece, parts):
                self._say(piece, parts)

    def _call(self, raw: str, parts: list[Part]) -> bool:
        calls = self._format.calls(raw)
        if not calls:
            return False
        parts += calls
        self._called()
        return True

    def _called(self) -> None:
        self._blank = ""
        self._at_head = self._after_call = True
