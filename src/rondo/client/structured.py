"""Structured output. Plain frozen data: equal parameters are one grammar to the engine, compiled once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import InvalidRequest

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
TAG = (
    '{"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}, with a trigger for each beginning'
)
MAX_GRAMMAR = 256 * 1024
"""Characters of a schema, a pattern, a grammar, or of all choices together."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one of the six is set; names are vLLM's.

    `json` is a JSON schema, as an object or as its text. `json_object` requests any JSON object. `grammar` is in Lark's
    syntax or in GBNF. `structural_tag` is vLLM's: free text, in which the text after a trigger obeys a schema. Where a
    schema is not `strict`, keywords that cannot be enforced are omitted; else they are refused. `param` is the
    request's field for error messages.
    """

    json: Any = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    strict: bool = True
    param: str = field(default="structured_outputs", compare=False)

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            raise self.refusal(f"takes exactly one of {', '.join(KINDS)}; got {', '.join(given) or 'none'}")
        if self.json is not None:
            object.__setattr__(self, "json", self._as_json(self.json)[0])
        if self.structural_tag is not None:
            text, tag = self._as_json(self.structural_tag)
            if not _is_tag(tag):
                raise self.refusal(f"structural_tag must be {TAG}")
            object.__setattr__(self, "structural_tag", text)
        if self.choice is not None:
            object.__setattr__(self, "choice", self._checked_choice())
        for kind in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, kind)
            if value is not None and (not isinstance(value, str) or not value):
                raise self.refusal(f"{kind} must be a text that is not empty")
        if len(self.source) > MAX_GRAMMAR or len(self.whitespace_pattern or "") > MAX_GRAMMAR:
            raise self.refusal(f"is longer than {MAX_GRAMMAR} characters")

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) not in (None, False))

    @property
    def source(self) -> str:
        """The schema, pattern or grammar as text; choices as a JSON list."""
        value = getattr(self, self.kind)
        if self.json_object:
            return '{"type": "object"}'
        return json.dumps(value) if self.choice is not None else str(value)

    def refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self.param} {why}.", param=self.param, code="invalid_value")

    def _as_json(self, value: Any) -> tuple[str, Mapping[str, Any]]:
        """The JSON text, with the order of keys preserved (it is the order of an object's properties), and its parsed
        value."""
        try:
            text, said = (value, json.loads(value)) if isinstance(value, str) else (json.dumps(value), value)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.refusal(f"is not a JSON schema ({error})") from None
        if not isinstance(said, Mapping):
            raise self.refusal("must be a JSON object")
        return text, said

    def _checked_choice(self) -> tuple[str, ...]:
        assert self.choice is not None
        if isinstance(self.choice, str) or not all(isinstance(each, str) for each in self.choice):
            raise self.refusal("choice must be a list of texts")
        if not self.choice:
            raise self.refusal("choice must not be empty")
        return tuple(dict.fromkeys(self.choice))


def _is_tag(tag: Mapping[str, Any]) -> bool:
    """Whether the tag has both triggers and structures."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not (isinstance(structures, list | tuple) and isinstance(triggers, list | tuple) and structures):
        return False
    texts = all(isinstance(trigger, str) and trigger for trigger in triggers)
    return texts and all(_begins(structure, triggers) for structure in structures)


def _begins(structure: Any, triggers: Sequence[str]) -> bool:
    if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
        return False
    begin, end = structure["begin"], structure["end"]
    if not (isinstance(begin, str) and isinstance(end, str) and isinstance(structure["schema"], dict)):
        return False
    return begin.startswith(tuple(triggers))
