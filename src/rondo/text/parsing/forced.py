"""Grammars, in llguidance's Lark, of answers that must be calls or JSON: written as the model writes them by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPACES = r"[ ]?|\n{1,2}[ \t]{0,20}"
"""What may stand between JSON's tokens: a small model might not find the end of more."""
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}

SpecialId = Callable[[str], int | None]
"""The id of a special token, which is written as no text; None for what is text."""


@dataclass(frozen=True)
class CallSyntax:
    """How calls are written; `{name}` in `before` is the function's. Without `between` there is one call at most."""

    before: str
    after: str = ""
    between: str | None = None
    opening: str = ""
    closing: str = ""


@dataclass(frozen=True)
class Thought:
    """Reasoning that may come first; where the prompt has `opened` it, it does."""

    opening: str
    closing: str
    opened: bool = False
    blanks: bool = True


class Grammar:
    """Rules, gathered as they are needed."""

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
        """Text as it is, special tokens by their ids."""
        pieces = (
            re.split("(" + "|".join(map(re.escape, self._special)) + ")", text) if self._special else [text]
        )
        return " ".join(self._piece(piece) for piece in pieces if piece)

    def until(self, name: str, end: str) -> str:
        """Any text up to `end`, and `end`."""
        if end.startswith(tuple(self._special)):
            return self.rule(name, f"/(?s:.*)/ {self.literal(end)}")
        return self.rule(name, "/(?s:.*)/", f"[suffix={_quoted(end)}]")

    def json(self, name: str, schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """JSON of a schema, `options` are llguidance's."""
        return self.rule(name, "%json " + json.dumps({**schema, "x-guidance": dict(options)}))

    def think(self, thought: Thought) -> str:
        said = self.until("thought", thought.closing)
        blanks = self.rule("blanks", r"/\n{0,2}/") if thought.blanks else ""
        again = f"({self.literal(thought.opening)})?" if thought.opened else self.literal(thought.opening)
        return self.rule("think", f"{again} {said} {blanks}") + ("" if thought.opened else "?")

    def calls(self, shape: CallSyntax, arguments: Mapping[str, str], parallel: bool) -> str:
        """`arguments` are the rules of each function's."""
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
    """What of its schema cannot be enforced is left out, unless it is strict."""
    return {"whitespace_pattern": SPACES, "lenient": not function.get("strict")}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
