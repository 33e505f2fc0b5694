"""Config values written as text, in variables and flags, and the line numbers of a TOML file."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, get_args, get_origin

from rondo.base.errors import ConfigError
from rondo.base.settings.config_keys import members, sections_of
from rondo.base.units import parse_count

_BOOL_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
_NONE_WORDS = frozenset({"none", "null"})
_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_TABLE_ARRAY = re.compile(r"^\s*\[\[\s*([^\[\]]+?)\s*\]\]\s*(?:#.*)?$")
_NAME = r"""(?:[A-Za-z0-9_\-]+|"[^"]*"|'[^']*')"""
_ASSIGNMENT = re.compile(rf"^\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


def is_bool_word(text: str) -> bool:
    return text.lower() in _BOOL_WORDS


def from_text(annotation: Any, text: str, path: str, where: str) -> object:
    """The value that `text` stands for where `annotation` is expected; pydantic checks and converts the rest.

    Lists and tuples are JSON or separated by commas, mappings and sections are JSON objects, and `none` is
    None where None is allowed.
    """
    kinds = members(annotation)
    if type(None) in kinds and text.strip().lower() in _NONE_WORDS:
        return None
    for kind in kinds:
        literals = get_args(kind) if get_origin(kind) is Literal else ()
        for literal in literals:
            if str(literal) == text:
                return literal
    if str in kinds:
        return text
    if int in kinds and text[-1:].isalpha() and (number := _suffixed(text)) is not None:
        return number
    if any(_is(kind, Mapping) for kind in kinds) or sections_of(annotation):
        hidden = bool(sections_of(annotation))  # a section may hold a secret
        return _json(text, path, where, hidden) if text.lstrip().startswith("{") else text
    if any(_is(kind, Sequence) or _is(kind, AbstractSet) for kind in kinds):
        if text.lstrip().startswith("["):
            return _json(text, path, where)
        return [part.strip() for part in text.split(",")] if text.strip() else []
    return text.strip()


def _suffixed(text: str) -> int | None:
    try:
        return parse_count(text)
    except ValueError:
        return None


def toml_lines(text: str) -> dict[str, int]:
    """Dotted key -> the line where it is set; `tomllib` records no positions."""
    lines: dict[str, int] = {}
    prefix: list[str] = []
    closing: str | None = None  # inside a multi-line string: what ends it
    for number, line in enumerate(text.splitlines(), start=1):
        if closing is not None:
            closing = None if closing in line else closing
            continue
        if table := _TABLE.match(line) or _TABLE_ARRAY.match(line):
            prefix = _parts(table[1])
            lines.setdefault(".".join(prefix), number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(".".join([*prefix, *_parts(assignment[1])]), number)
            value = line[assignment.end() :].lstrip()
            quote = value[:3]
            if quote in ('"""', "'''") and quote not in value[3:]:
                closing = quote
    return lines


def _parts(key: str) -> list[str]:
    """`a."b.c".d` -> ['a', 'b.c', 'd'], by TOML's own rules."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return [key]
    parts = []
    while isinstance(table, dict):
        (name, table) = next(iter(table.items()))
        parts.append(name)
    return parts


def _json(text: str, path: str, where: str, hidden: bool = False) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = "" if hidden else f" = {text!r}"
        raise ConfigError(f"{path}{shown} ({where}) is not valid JSON: {error}.", param=path) from None


def _is(kind: Any, base: type) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, base) and not issubclass(origin, str | bytes)
