"""Conversion of a model's JSON to a call; invalid input is None, never an error."""

from __future__ import annotations

import json
from typing import Any

from rondo.text.parsing.parts import Call


def read_json(text: str) -> Any:
    """The parsed JSON; None if it is invalid or `null`."""
    try:
        return json.loads(text, parse_constant=_refuse, strict=False)
    except (ValueError, RecursionError):
        return None


def call_from(text: str) -> Call | None:
    return call_of(read_json(text))


def call_of(value: object) -> Call | None:
    """A call from `{"name": ..., "arguments": {...}}`; some models write `parameters`, some write the arguments as a
    string."""
    if not isinstance(value, dict):
        return None
    given = value.get("arguments", value.get("parameters"))
    id = value.get("id")
    return named_call(value.get("name"), {} if given is None else given, id if isinstance(id, str) else None)


def named_call(name: object, arguments: object, id: str | None = None) -> Call | None:
    """A call, if the name is valid and the arguments are an object or the JSON of one."""
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(name, str) or not name or not _is_text(name) or not isinstance(arguments, dict):
        return None
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        return Call(name, written if _is_text(written) else json.dumps(arguments), id)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _is_text(text: str) -> bool:
    """Whether a string can be encoded: JSON can escape lone surrogates, UTF-8 cannot encode them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
