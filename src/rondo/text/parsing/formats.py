"""Tool-call formats of the model families. Each format detects the end of a block of calls, and parses the calls."""

from __future__ import annotations

import ast
import re
from typing import ClassVar, Protocol

from rondo.text.parsing.calls import call_from, call_of, named_call, read_json
from rondo.text.parsing.forced import CallSyntax
from rondo.text.parsing.marked import CallFormat
from rondo.text.parsing.parts import Call
from rondo.text.parsing.scan import LONGEST_HEAD, JsonScan
from rondo.text.parsing.streamed import OPENED, Tail

ARGUMENTS = f"(?P<arguments>{OPENED})"
CALLED = (
    r'(?P<object>\{)\s*+(?:"type"\s*+:\s*+"function"\s*+,\s*+)?"name"\s*+:\s*+"(?P<name>[^"\\]++)"\s*+,\s*+'
    rf'"(?:arguments|parameters)"\s*+:\s*+{ARGUMENTS}'
)
"""The start of a call object, with keys in the order in which models write them. The pattern is matched at each token,
so it uses possessive quantifiers (`++`) without backtracking: model output may be adversarial."""


class MarkedEnd:
    """A block up to its end marker; with `json`, a marker inside a JSON string does not count."""

    def __init__(self, marker: str, json: bool = False) -> None:
        self._marker = marker
        self._json = JsonScan() if json else None
        self._passed = 0
        # A possible start of the marker.
        self._kept = ""

    def feed(self, text: str) -> int | None:
        text = self._kept + text
        past = since = 0
        while (at := text.find(self._marker, since)) >= 0:
            self._pass(text, past, at)
            past, since = at, at + 1
            if self._json is None or not self._json.in_string:
                return self._passed + at + len(self._marker)
        keep = max(since, len(text) - len(self._marker) + 1)
        self._pass(text, past, keep)
        self._passed += keep
        self._kept = text[keep:]
        return None

    def _pass(self, text: str, start: int, stop: int) -> None:
        at: int | None = start
        while self._json is not None and at is not None:
            at = self._json.feed(text, at, stop)


class Scan(Protocol):
    def feed(self, text: str) -> int | None:
        """Index of the end in `text`; None if it is not reached."""


class HeadedEnd:
    """A block up to the end detected by `scan`, which starts with the last character of `head`."""

    def __init__(self, head: re.Pattern[str], scan: Scan) -> None:
        self._head = head
        self._scan = scan
        self._text: str | None = ""
        """Text so far, until the head is recognized."""
        self._passed = 0

    def feed(self, text: str) -> int | None:
        if self._text is not None:
            if len(self._text) >= LONGEST_HEAD:
                return None
            self._text += text
            head = self._head.match(self._text, 0, LONGEST_HEAD)
            if head is None:
                return None
            self._passed, text, self._text = head.end() - 1, self._text[head.end() - 1 :], None
        end = self._scan.feed(text)
        if end is not None:
            return self._passed + end
        self._passed += len(text)
        return None


class Hermes(CallFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3."""

    starts = ("<tool_call>",)
    inner = ("</tool_call>",)
    openings = (re.compile(r"<tool_call>\s*+" + CALLED),)
    tail = (inner,)

    def block(self) -> MarkedEnd:
        return MarkedEnd("</tool_call>", json=True)

    def calls(self, text: str) -> list[Call] | None:
        call = call_from(text.removeprefix("<tool_call>").strip().removesuffix("</tool_call>"))
        return None if call is None else [call]

    def shape(self, template: str) -> CallSyntax:
        return CallSyntax('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", "\n")


class Llama3(CallFormat):
    """`{"name": ..., "parameters": {...}}` in place of an answer, separated by `;`, or after `<|python_tag|>`; there
    also `name.call(key="value")`. Without the tag only objects that name a tool are calls. Llama 4 has other tags."""

    starts = ("<|python_tag|>", "<|python_start|>")
    head_starts = ("{",)
    noise = (";", "<|python_end|>")
    openings = (re.compile(r"(?:<\|python_(?:tag|start)\|>\s*+)?" + CALLED),)

    _OPENING = re.compile(r"(?:<\|python_(?:tag|start)\|>\s*+)?\{")

    def block(self) -> HeadedEnd:
        return HeadedEnd(self._OPENING, JsonScan())

    def begins(self, text: str) -> re.Match[str] | None:
        begun = super().begins(text)
        known = begun is not None and (text.startswith(self.starts) or begun["name"] in self.tools)
        return begun if known else None

    def calls(self, text: str) -> list[Call] | None:
        tag = next((tag for tag in self.starts if text.startswith(tag)), "")
        body = text.removeprefix(tag).strip()
        value = read_json(body)
        if not tag:
            known = isinstance(value, dict) and ("parameters" in value or "arguments" in value)
            call = call_of(value) if known else None
            return [call] if call is not None and call.name in self.tools else None
        call = call_of(value) if isinstance(value, dict) else _builtin(body)
        return None if call is None else [call]

    def shape(self, template: str) -> CallSyntax:
        return CallSyntax('{"name": "{name}", "parameters": ', "}", "; ")


def _builtin(text: str) -> Call | None:
    """Llama's syntax for built-in tools: `brave_search.call(query="...")`."""
    try:
        tree = ast.parse(text, mode="eval").body
        match tree:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="call"), args=[], keywords=keywords
            ):
                return named_call(name, {str(word.arg): ast.literal_eval(word.value) for word in keywords})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return None


class JsonList(CallFormat):
    """A marker, and `[{"name": ..., "arguments": {...}}, ...]`."""

    closing: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        marker = "(?:" + "|".join(map(re.escape, cls.starts)) + ")"
        cls.openings = (re.compile(rf"(?:{marker}\s*+(?:\[\s*+)?)?{CALLED}"),)
        cls.tail = ((",", "]"), (cls.closing,)) if cls.closing else ((",", "]"),)
        cls._beginning = re.compile(rf"{marker}\s*+\[(?=\s*+[{{\]])|(?:{marker}\s*+)?\{{")

    _beginning: ClassVar[re.Pattern[str]]

    def block(self) -> HeadedEnd:
        return HeadedEnd(self._beginning, JsonScan())

    def calls(self, text: str) -> list[Call] | None:
        marker = next((marker for marker in self.starts if text.startswith(marker)), "")
        listed = read_json(text.removeprefix(marker))
        found = [call_of(one) for one in (listed if isinstance(listed, list) else [listed])]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else None

    def heads_after(self, marker: str) -> tuple[str, ...]:
        return ("{",) if marker == "," else ()

    def shape(self, template: str) -> CallSyntax:
        opening, closing = f"{self.starts[0]}[", f"]{self.closing}"
        return CallSyntax('{"name": "{name}", "arguments": ', "}", ", ", opening, closing)


class Granite(JsonList):
    starts = ("<|tool_call|>", "<tool_call>")


class Jamba(JsonList):
    starts = ("<tool_calls>",)
    closing = "</tool_calls>"
    noise = ("</tool_calls>",)


class Phi4(JsonList):
    starts = ("functools",)


class Mistral(JsonList):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, since v11 `[TOOL_CALLS]name[ARGS]{...}` for each
    call."""

    starts = ("[TOOL_CALLS]",)
    inner = ("[CALL_ID]", "[ARGS]")

    _NAME = r"\[TOOL_CALLS\]\s*+(?P<name>[\w.-]++)\s*+(?:\[CALL_ID\]\s*+(?P<id>\w++)\s*+)?(?:\[ARGS\]\s*+)?"
    _NAMED = re.compile(_NAME + r"(\{.*\})\s*+", re.S)
    _NAMED_OPENING = re.compile(_NAME + ARGUMENTS)
    _BEGINNING = re.compile(rf"{_NAME}\{{|\[TOOL_CALLS\]\s*+\[(?=\s*+[{{\]])|\{{")

    def block(self) -> HeadedEnd:
        return HeadedEnd(self._BEGINNING, JsonScan())

    def begins(self, text: str) -> re.Match[str] | None:
        return super().begins(text) or self._NAMED_OPENING.match(text)

    def ends(self, begun: re.Match[str]) -> Tail:
        return self.tail if begun.groupdict().get("object") else ()

    def calls(self, text: str) -> list[Call] | None:
        named = self._NAMED.fullmatch(text)
        if named is None:
            return super().calls(text)
        name, id, arguments = named.groups()
        call = named_call(name, arguments, id)
        return None if call is None else [call]

    def shape(self, template: str) -> CallSyntax:
        if "[ARGS]" in template:
            return CallSyntax("[TOOL_CALLS]{name}[ARGS]", between="")
        return CallSyntax(
            '{"name": "{name}", "arguments": ', "}", ", ", opening="[TOOL_CALLS] [", closing="]"
        )


class DeepSeek(CallFormat):
    """Calls between special tokens: V3 and R1 write `function`, the name, and a code block of JSON; V3.1 the name and
    JSON."""

    BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    starts = (BEGIN,)
    inner = (SEP, END)
    noise = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

    _FENCE = r"\s*+(?P<name>\S(?:[^\n]*\S)?)\s*+(?<=\n)```json[^\S\n]*+\n"
    openings = (
        re.compile(rf"{BEGIN}\s*+\w*+\s*+{SEP}{_FENCE}\s*+{ARGUMENTS}"),
        re.compile(rf"{BEGIN}\s*+(?P<name>[^\s<](?:[^\n<]*[^\s<])?)\s*+{SEP}\s*+{ARGUMENTS}"),
    )
    tail = (("```",), (END,))

    _FENCED = re.compile(rf"{_FENCE}(?P<body>.*)```\s*+", re.S)

    def block(self) -> MarkedEnd:
        return MarkedEnd(self.END)

    def calls(self, text: str) -> list[Call] | None:
        left, sep, right = text.removeprefix(self.BEGIN).removesuffix(self.END).partition(self.SEP)
        fenced = self._FENCED.fullmatch(right)
        name, arguments = (
            (fenced["name"], fenced["body"].strip()) if fenced is not None else (left.strip(), right)
        )
        call = named_call(name, arguments) if sep else None
        return None if call is None else [call]

    def shape(self, template: str) -> CallSyntax:
        opening, closing = self.noise
        if "```json" in template:
            before, after = f"{self.BEGIN}function{self.SEP}{{name}}\n```json\n", f"\n```{self.END}"
            return CallSyntax(before, after, "\n", opening, closing)
        return CallSyntax(f"{self.BEGIN}{{name}}{self.SEP}", self.END, "", opening, closing)


class KimiK2(CallFormat):
    """`functions.name:0` between special tokens, which is also the call's id, and its arguments."""

    BEGIN, SEP, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    starts = (BEGIN,)
    inner = (SEP, END)
    noise = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    tail = ((END,),)

    _NAMED = rf"{re.escape(BEGIN)}\s*+(?P<id>(?:functions\.)?(?P<name>[\w.-]++):\d++)\s*+{re.escape(SEP)}\s*+"
    openings = (re.compile(_NAMED + ARGUMENTS),)
    _WHOLE = re.compile(_NAMED + r"(?P<body>.*)", re.S)

    def block(self) -> MarkedEnd:
        return MarkedEnd(self.END)

    def calls(self, text: str) -> list[Call] | None:
        found = self._WHOLE.fullmatch(text.removesuffix(self.END))
        call = None if found is None else named_call(found["name"], found["body"], found["id"])
        return None if call is None else [call]

    def shape(self, template: str) -> CallSyntax:
        """Syntax for one call, because each further call would need its own number."""
        opening, closing = self.noise
        return CallSyntax(f"{self.BEGIN}functions.{{name}}:0{self.SEP}", self.END, None, opening, closing)
