"""Grammars in llguidance's Lark for answers that must be calls or JSON, in the model's native format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPACES = r"[ ]?|\n{1,2}[ \t]{0,20}"
"""Whitespace permitted between JSON tokens; a small model might not end longer whitespace."""
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}

SpecialId = Callable[[str], int | None]
"""The id of a special token, which does not appear as text; None for plain text."""


@dataclass(frozen=True)
class CallSyntax:
    """Syntax of calls; `{name}` in `before` is the function's name. Without `between` there is at most one call."""

    before: str
    after: str = ""
    between: str | None = None
    opening: str = ""
    closing: str = ""


@dataclass(frozen=True)
class Thought:
    """Optional reasoning before the answer; mandatory if the prompt has `opened` it."""

    opening: str
    closing: str
    opened: bool = False
    blanks: bool = True


class Grammar:
    """A grammar whose rules are added on demand."""

    def __init__(self, special_id: SpecialId, markers: Sequence[str]) -> None:
        self._special_id = special_id
        self._special = [marker for marker in markers if special_id(marker) is not None]
        self._rules: list[str] = []

    def text(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules])

    def rule(self, name: str, body: str, options: str = "") -> str:
        self._rules.append(f"{name}{options}: {body}")
        return name

    def literal(self, text: str) -> str:
        """A rule for literal text, with special tokens by their ids."""
        pieces = (
            re.split("(" + "|".join(map(re.escape, self._special)) + ")", text) if self._special else [text]
        )
        return " ".join(self._piece(piece) for piece in pieces if piece)

    def until(self, name: str, end: str) -> str:
        """A rule for any text up to and including `end`."""
        if end.startswith(tuple(self._special)):
            return self.rule(name, f"/(?s:.*)/ {self.literal(end)}")
        return self.rule(name, "/(?s:.*)/", f"[suffix={_quoted(end)}]")

    def json(self, name: str, schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """A rule for JSON of a schema; `options` are llguidance's."""
        return self.rule(name, "%json " + json.dumps({**schema, "x-guidance": dict(options)}))

    def think(self, thought: Thought) -> str:
        said = self.until("thought", thought.closing)
        blanks = self.rule("blanks", r"/\n{0,2}/") if thought.blanks else ""
        again = f"({self.literal(thought.opening)})?" if thought.opened else self.literal(thought.opening)
        return self.rule("think", f"{again} {said} {blanks}") + ("" if thought.opened else "?")

    def calls(self, shape: CallSyntax, arguments: Mapping[str, str], parallel: bool) -> str:
        """A rule for calls; `arguments` are the rules of each function's arguments."""
        names = []
        for index, (name, rule) in enumerate(arguments.items()):
            before = self.literal(shape.before.replace("{name}", _quoted(name)[1:-1]))
            names.append(self.rule(f"call_{index}", f"{before} {rule} {self.literal(shape.after)}"))
        one = self.rule("call", " | ".join(names))
        more = f"({self.literal(shape.between)} {one})*" if parallel and shape.between is not None else ""
        return self.rule("calls", f"{self.literal(shape.opening)} {one} {more} {self.literal(shape.closing)}")

    def _piece(self, text: str) -> str:
        id = self._special_id(text)
        return _quoted(text) if id is None else f"<[{id}]>"


def json_arguments(grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
    return grammar.json(rule, function.get("parameters") or NO_ARGUMENTS, options_of(function))


def options_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a function's schema: unsupported parts of it are ignored, unless it is strict."""
    return {"whitespace_pattern": SPACES, "lenient": not function.get("strict")}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
