"""gpt-oss's Harmony format: messages, each with a channel. The prompt contains the start of the first header."""

from __future__ import annotations

import re

from rondo.text.parsing.calls import named_call
from rondo.text.parsing.forced import CallSyntax, Thought
from rondo.text.parsing.parts import ArgumentsDelta, Call, Content, Part, Reasoning
from rondo.text.parsing.scan import LONGEST_HEAD, PIECE, first_of, held_back, taken
from rondo.text.parsing.streamed import OPENED, JsonText

MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
_START, _CHANNEL, _MESSAGE, _, *_ENDS = MARKERS

_HEADERS = (_START, _CHANNEL, _MESSAGE, "to=")
_BODY_ENDS = (*_ENDS, _START, _CHANNEL)
_CHANNEL_OF = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION_OF = re.compile(r"\bto=functions\.([^\s<]+)")
_ARGUMENTS = re.compile(r"\s*+(?=" + OPENED + ")")
_LONGEST = max(map(len, MARKERS))


SHAPE = CallSyntax("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")
THOUGHT = Thought("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", blanks=False)
FINAL = "<|channel|>final<|message|>"


class Harmony:
    """Parser of Harmony: `analysis` is reasoning, a message to a function is a call, the rest is content. Messages of
    one kind are separated by a newline. Without `calls`, no message is parsed as a call."""

    may_reason = True

    def __init__(self, calls: bool) -> None:
        self._calls = calls
        self._text = ""
        # Pieces of an unfinished header or call before `_text`, joined at its end, because they may be long.
        self._kept: list[str] = []
        self._heading = False
        self._header: str | None = None
        self._function: str | None = None
        self._kind: type[Content] | type[Reasoning] = Content
        self._fresh = True
        self._said: set[type[Part]] = set()
        # Parser of a call's arguments, and whether only whitespace has followed the call.
        self._streamed: JsonText | None = None
        self._called = False

    @property
    def reasons(self) -> bool:
        return self._header is not None and self._kind is Reasoning

    def reasons_through(self, text: str) -> bool:
        return self.reasons and not self._text and _START[0] not in text

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for at in range(0, len(text), PIECE):
            self._text += text[at : at + PIECE]
            while self._text and (self._begin() if self._header is None else self._body(parts)):
                pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        text, self._text = taken(self._kept) + self._text, ""
        if self._called:
            self._more(text, parts)
        elif self._header is not None and self._function is not None:
            self._call(self._function, text, parts)
        else:
            self._say(text, parts)
        return parts

    def _begin(self) -> bool:
        """Reads a header; text without a header is content."""
        if not self._heading:
            head = self._text.lstrip()
            self._kept.append(self._text[: len(self._text) - len(head)])
            self._text = head
            if not head or any(header.startswith(head) and header != head for header in _HEADERS):
                return False
            if not head.startswith(_HEADERS):
                self._text = taken(self._kept) + head
                self._open("")
                return True
            self._heading = True
        end = self._text.find(_MESSAGE)
        if end < 0:
            self._keep(len(_MESSAGE))
            return False
        header = taken(self._kept) + self._text[:end]
        self._text = self._text[end + len(_MESSAGE) :]
        self._open(header)
        return True

    def _keep(self, longest: int) -> None:
        """Moves text that cannot be part of a marker of length `longest` to `_kept`."""
        certain = max(0, len(self._text) - longest + 1)
        self._kept.append(self._text[:certain])
        self._text = self._text[certain:]

    def _open(self, header: str) -> None:
        self._heading = False
        channel, function = _CHANNEL_OF.search(header), _FUNCTION_OF.search(header)
        self._header = header
        self._function = function[1] if function is not None and self._calls else None
        self._kind = Reasoning if channel is not None and channel[1] == "analysis" else Content
        self._fresh = True

    def _body(self, parts: list[Part]) -> bool:
        if (
            self._function is not None
            and not self._kept
            and (begun := _ARGUMENTS.match(self._text, 0, LONGEST_HEAD)) is not None
        ):
            parts.append(Call(self._function, ""))
            self._streamed, self._called = JsonText(), True
            self._function, self._text = None, self._text[begun.end() :]
        text = self._text
        end = first_of(text, _BODY_ENDS)
        if self._function is None:
            certain = end if end >= 0 else len(text) - held_back(text, _BODY_ENDS)
            if self._called:
                self._more(text[:certain], parts)
            else:
                self._say(text[:certain], parts)
            self._text = text = text[certain:]
            end = min(end, 0)
        if end < 0:
            if self._function is not None and (self._kept or len(text) >= LONGEST_HEAD):
                self._keep(_LONGEST)
            return False
        if self._function is not None:
            self._call(self._function, taken(self._kept) + text[:end], parts)
        ending = next((marker for marker in _ENDS if text.startswith(marker, end)), "")
        self._text = text[end + len(ending) :]
        self._header = self._function = self._streamed = None
        self._called = False
        self._kind = Content
        return True

    def _more(self, text: str, parts: list[Part]) -> None:
        """Adds to a call's arguments. Whitespace after them is dropped; other text is content."""
        rest: str | None = text
        if self._streamed is not None:
            said, rest = self._streamed.take(text)
            if said:
                parts.append(ArgumentsDelta(said))
        if rest is not None:
            self._streamed = None
            rest = rest.lstrip()
            self._called = not rest
            self._say(rest, parts)

    def _call(self, name: str, body: str, parts: list[Part]) -> None:
        call = named_call(name, body)
        if call is not None:
            parts.append(call)
        else:
            self._say(f"{self._header}{_MESSAGE}{body}", parts)

    def _say(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._fresh and self._kind in self._said:
            text = "\n" + text
        self._fresh = False
        self._said.add(self._kind)
        parts.append(self._kind(text))
