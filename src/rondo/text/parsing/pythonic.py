"""Calls in Python syntax: `[get_weather(city="Paris"), now()]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from rondo.text.parsing.calls import named_call
from rondo.text.parsing.forced import CallSyntax, Grammar, options_of
from rondo.text.parsing.formats import HeadedEnd, MarkedEnd
from rondo.text.parsing.marked import CallBlock, CallFormat
from rondo.text.parsing.parts import Call

NAMES = {"true": True, "false": False, "null": None}
"""JSON literals that a model may mix in."""

_MARK = re.compile(r"[\"'\\\[\]]")


class ListScan:
    """Incremental scan for the end of a list; brackets and quotes are Python's."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escapes = False

    def feed(self, text: str) -> int | None:
        """Index of the list's end in `text`; None if it is not reached."""
        at, self._escapes = int(self._escapes and bool(text)), self._escapes and not text
        while (mark := _MARK.search(text, at)) is not None:
            at = mark.end()
            char = mark[0]
            if char == "\\":
                self._escapes = at == len(text)
                at += 1
            elif self._quote:
                self._quote = "" if char == self._quote else self._quote
            elif char in "\"'":
                self._quote = char
            else:
                self._depth += 1 if char == "[" else -1
                if self._depth <= 0:
                    return at
        return None


class Pythonic(CallFormat):
    """A list of calls in place of an answer; Llama 4 may write tags around it. Without tags only a list of known tools
    counts."""

    starts = ("<|python_start|>",)
    head_starts: ClassVar[tuple[str, ...]] = ("[",)
    noise = ("<|python_end|>",)

    _HEAD = re.compile(r"(?:<\|python_start\|>\s*+)?\[")

    def block(self) -> CallBlock:
        return HeadedEnd(self._HEAD, ListScan())

    def calls(self, text: str) -> list[Call] | None:
        body = text.removeprefix(self.starts[0])
        calls = _calls(body.strip())
        if calls and body is text and not all(call.name in self.tools for call in calls):
            return None
        return calls

    def shape(self, template: str) -> CallSyntax:
        return CallSyntax("{name}(", ")", ", ", "[", "]")

    def arguments(self, grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
        """Rule for `key=value`, required arguments first; values are JSON, which the Python parser accepts."""
        schema = function.get("parameters") or {}
        required = set(schema.get("required", ()))
        properties = sorted(
            (schema.get("properties") or {}).items(), key=lambda item: item[0] not in required
        )
        rules = []
        for index, (key, value) in enumerate(properties):
            said = grammar.json(f"{rule}_{index}_value", value, options_of(function))
            rules.append(grammar.rule(f"{rule}_{index}", f"{grammar.literal(key + '=')} {said}"))
        count = sum(key in required for key, _ in properties)
        optional = [f'(", " {name})?' for name in rules[count:]]
        if count:
            return grammar.rule(rule, " ".join([' ", " '.join(rules[:count]), *optional]))
        ways = [" ".join([name, *optional[at + 1 :]]) for at, name in enumerate(rules)]
        return grammar.rule(rule, " | ".join([*ways, '""']))


class Olmo3(Pythonic):
    """Calls on separate lines between tags."""

    starts = ("<function_calls>",)
    head_starts = ()
    noise = ("</function_calls>",)

    def block(self) -> CallBlock:
        return MarkedEnd("</function_calls>")

    def calls(self, text: str) -> list[Call] | None:
        body = text.removeprefix("<function_calls>").strip().removesuffix("</function_calls>")
        return _calls(f"[{','.join(filter(None, map(str.strip, body.splitlines())))}]")

    def shape(self, template: str) -> CallSyntax:
        return CallSyntax("{name}(", ")", "\n", "<function_calls>\n", "\n</function_calls>")


def _calls(text: str) -> list[Call] | None:
    """The calls in a list that contains only calls with named literal arguments; None for other text."""
    try:
        tree = ast.parse(text, mode="eval").body
        calls = [_call(each) for each in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    whole = [call for call in calls if call is not None]
    return whole if whole and len(whole) == len(calls) else None


def _call(node: ast.expr) -> Call | None:
    match node:
        case ast.Call(func=function, args=[], keywords=keywords) if all(word.arg for word in keywords):
            arguments = {str(word.arg): _value(word.value) for word in keywords}
            return named_call(ast.unparse(function), json.loads(json.dumps(arguments)))
    return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(each) for each in elements]
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            return {
                _value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None
            }
    return ast.literal_eval(node)
