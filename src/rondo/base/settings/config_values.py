"""Values of settings as text: defaults, choices and allowed ranges, for help texts and the reference page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from rondo.base.settings.config_keys import SettingKey, members

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_KINDS = {int: "whole number", float: "number", str: "text"}


def choices(annotation: Any) -> list[str]:
    """Words that may stand for a value of this type: literals, booleans and none."""
    words: list[str] = []
    for kind in members(annotation):
        if get_origin(kind) is Literal:
            words += [shown(value) for value in get_args(kind)]
        elif kind is bool:
            words += ["true", "false"]
        elif kind is type(None):
            words.append("none")
    return words


def allowed(key: SettingKey) -> str:
    """Allowed values in words: "number above 0", "adamw or muon"."""
    words = choices(key.annotation)
    kinds = [_kind(one) for one in members(key.annotation)]
    bounds = [
        f"{word} {shown(value)}"
        for bound in key.bounds
        for name, word in _BOUNDS.items()
        if (value := getattr(bound, name, None)) is not None
    ]
    free = ", or ".join(dict.fromkeys(kind for kind in kinds if kind))
    if free and bounds:
        free = f"{free} {' and '.join(bounds)}"
    return ", or ".join(part for part in (free, _either(words)) if part)


def shown(value: object) -> str:
    """A value as a flag spells it: 8g, 0.0003, true, none."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() if value >= 1 << 20 and value % (1 << 20) == 0:
            return f"{value >> 30}g" if value % (1 << 30) == 0 else f"{value >> 20}m"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case list() | tuple() | set():
            return ",".join(map(shown, value))
        case dict():
            import json

            return json.dumps(value) if value else ""
        case _:
            return str(value)


def _kind(one: Any) -> str:
    origin = get_origin(one)
    if origin is Literal or one in (bool, type(None)):
        return ""
    if one in _KINDS:
        return _KINDS[one]
    kind = origin or one
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "JSON object"
    if isinstance(kind, type) and issubclass(kind, Sequence):
        parts = [part for part in get_args(one) if part is not Ellipsis]
        return f"{len(parts)} values" if origin is tuple and len(parts) > 1 else "list"
    return "text"


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
