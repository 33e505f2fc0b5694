"""How the families write calls. Each format says where a block of calls ends, and what it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from rondo.text.parsing.calls import call_from, call_of, named_call, read_json
from rondo.text.parsing.forced import Grammar, Shape, options_of
from rondo.text.parsing.marked import CallFormat
from rondo.text.parsing.parts import Call
from rondo.text.parsing.scan import JsonScan


class MarkedEnd:
    """A block up to its end marker; with `json`, one inside a JSON string does not count."""

    def __init__(self, marker: str, json: bool = False) -> None:
        self._marker = marker
        self._json = JsonScan() if json else None
        self._at = 0

    def end(self, text: str) -> int | None:
        while (at := text.find(self._marker, self._at)) >= 0:
            self._at = at + 1
            if self._json is not None:
                while self._json.advance(text, at) is not None:
                    pass
            if self._json is None or not self._json.in_string:
                return at + len(self._marker)
        self._at = max(self._at, len(text) - len(self._marker) + 1)
        return None


class JsonEnd:
    """A block up to the end of its JSON, which begins with the last character of `opening`."""

    def __init__(self, opening: re.Pattern[str]) -> None:
        self._opening = opening
        self._json: JsonScan | None = None

    def end(self, text: str) -> int | None:
        if self._json is None:
            opening = self._opening.match(text)
            if opening is None:
                return None
            self._json = JsonScan(opening.end() - 1)
        return self._json.end(text)


class Hermes(CallFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3."""

    starts = ("<tool_call>",)
    inner = ("</tool_call>",)

    def block(self) -> MarkedEnd:
        return MarkedEnd("</tool_call>", json=True)

    def calls(self, text: str) -> list[Call] | None:
        call = call_from(text.removeprefix("<tool_call>").strip().removesuffix("</tool_call>"))
        return None if call is None else [call]

    def shape(self, template: str) -> Shape:
        return Shape('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", "\n")


class QwenCoder(CallFormat):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`. Values are texts: which of
    them stand for something else, the function's schema says."""

    starts = ("<tool_call>", "<function=")
    noise = ("</tool_call>",)

    _FUNCTION = re.compile(
        r"\s*(?:<tool_call>)?\s*<function=([^>\s]+)>(.*)</function>\s*(?:</tool_call>)?\s*", re.S
    )
    _PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>(.*?)</parameter>\s*(?=<parameter=|\Z)", re.S)

    def block(self) -> MarkedEnd:
        return MarkedEnd("</function>")

    def calls(self, text: str) -> list[Call] | None:
        function = self._FUNCTION.fullmatch(text)
        if function is None:
            return None
        name, body = function.groups()
        schema = self.tools.get(name, {}).get("properties") or {}
        arguments, at = {}, 0
        while (parameter := self._PARAMETER.match(body, at)) is not None:
            key, value = parameter.groups()
            arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), schema.get(key))
            at = parameter.end()
        call = named_call(name, arguments)
        return None if call is None or body[at:].strip() else [call]

    def shape(self, template: str) -> Shape:
        return Shape("<tool_call>\n<function={name}>\n", "</function>\n</tool_call>", "\n")

    def arguments(self, grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
        schema = function.get("parameters") or {}
        parameters = []
        for index, (key, value) in enumerate((schema.get("properties") or {}).items()):
            name = f"{rule}_{index}"
            opening, end = f"<parameter={key}>\n", "\n</parameter>\n"
            if _is_text(value):
                said = grammar.until(f"{name}_value", end)
            else:
                said = grammar.json(f"{name}_value", value, options_of(function)) + f" {grammar.literal(end)}"
            grammar.rule(name, f"{grammar.literal(opening)} {said}")
            parameters.append(name if key in schema.get("required", ()) else f"{name}?")
        return grammar.rule(rule, " ".join(parameters) or '""')


def _typed(text: str, schema: Any) -> Any:
    """A parameter's value: the JSON that it is written as, unless a string is due."""
    kinds = _kinds(schema)
    if _is_text(schema):
        return None if text == "null" and "null" in kinds else text
    value = read_json(text.lower() if kinds == "boolean" else text)
    return text if value is None and text.strip() != "null" else value


def _kinds(schema: Any) -> Any:
    return schema.get("type", "string") if isinstance(schema, dict) else "string"


def _is_text(schema: Any) -> bool:
    return "string" in _kinds(schema)


class Llama3(CallFormat):
    """`{"name": ..., "parameters": {...}}` in place of an answer, several with `;` between them, or after
    `<|python_tag|>`; there also `name.call(key="value")`. Without the tag only what names a tool is a call."""

    TAG = "<|python_tag|>"
    starts = (TAG,)
    head_starts = ("{",)
    noise = (";",)

    _OPENING = re.compile(r"(?:<\|python_tag\|>\s*)?\{")

    def block(self) -> JsonEnd:
        return JsonEnd(self._OPENING)

    def calls(self, text: str) -> list[Call] | None:
        body = text.removeprefix(self.TAG).strip()
        value = read_json(body)
        if body is text or not text.startswith(self.TAG):
            known = isinstance(value, dict) and ("parameters" in value or "arguments" in value)
            call = call_of(value) if known else None
            return [call] if call is not None and call.name in self.tools else None
        call = call_of(value) if isinstance(value, dict) else _builtin(body)
        return None if call is None else [call]

    def shape(self, template: str) -> Shape:
        return Shape('{"name": "{name}", "parameters": ', "}", "; ")


def _builtin(text: str) -> Call | None:
    """Llama's way to call what it was trained with: `brave_search.call(query="...")`."""
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


class Mistral(CallFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, since v11 `[TOOL_CALLS]name[ARGS]{...}` for each."""

    starts = ("[TOOL_CALLS]",)
    inner = ("[CALL_ID]", "[ARGS]")

    _OPENING = re.compile(
        r"\[TOOL_CALLS\]\s*(?:\[(?=\s*[{\]])|[\w.-]+\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*\{)"
    )
    _NAMED = re.compile(
        r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*(\{.*\})\s*", re.S
    )

    def block(self) -> JsonEnd:
        return JsonEnd(self._OPENING)

    def calls(self, text: str) -> list[Call] | None:
        named = self._NAMED.fullmatch(text)
        if named is not None:
            name, id, arguments = named.groups()
            found = [named_call(name, arguments, id)]
        else:
            listed = read_json(text.removeprefix("[TOOL_CALLS]"))
            found = [call_of(one) for one in listed] if isinstance(listed, list) else [None]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else None

    def shape(self, template: str) -> Shape:
        if "[ARGS]" in template:
            return Shape("[TOOL_CALLS]{name}[ARGS]", between="")
        return Shape('{"name": "{name}", "arguments": ', "}", ", ", opening="[TOOL_CALLS] [", closing="]")


class DeepSeek(CallFormat):
    """Calls between special tokens: V3 and R1 write `function`, the name, and a code block of JSON; V3.1 the name
    and JSON."""

    BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    starts = (BEGIN,)
    inner = (SEP, END)
    noise = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

    _FENCED = re.compile(r"\s*([^\n]+?)\s*\n```json\s*\n(.*?)\s*```\s*", re.S)

    def block(self) -> MarkedEnd:
        return MarkedEnd(self.END)

    def calls(self, text: str) -> list[Call] | None:
        left, sep, right = text.removeprefix(self.BEGIN).removesuffix(self.END).partition(self.SEP)
        fenced = self._FENCED.fullmatch(right)
        name, arguments = fenced.groups() if fenced is not None else (left.strip(), right)
        call = named_call(name, arguments) if sep else None
        return None if call is None else [call]

    def shape(self, template: str) -> Shape:
        opening, closing = self.noise
        if "```json" in template:
            before, after = f"{self.BEGIN}function{self.SEP}{{name}}\n```json\n", f"\n```{self.END}"
            return Shape(before, after, "\n", opening, closing)
        return Shape(f"{self.BEGIN}{{name}}{self.SEP}", self.END, "", opening, closing)
