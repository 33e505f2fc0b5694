"""Parsing of a grader's fields from JSON or TOML; errors contain the field and the nearest valid name."""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rondo.base.errors import ConfigError

Made = TypeVar("Made")

GENERAL = ("type", "name", "timeout_s")
"""Fields of every grader's spec, independent of its type."""


def build(cls: type[Made], spec: Mapping[str, Any], where: str, general: Collection[str] = GENERAL) -> Made:
    """Builds the dataclass `cls` from the fields in `spec`, except for the `general` fields, which the registry reads.
    A field that is itself a dataclass is a nested table."""
    known = {each.name: each for each in fields(cls) if not each.name.startswith("_")}  # type: ignore[arg-type]
    given = {name: value for name, value in spec.items() if name not in general}
    refuse_unknown(given, known, where)
    missing = [name for name, each in known.items() if name not in given and _needed(each)]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}.", param=f"{where}.{missing[0]}")
    hints = get_type_hints(cls)
    values = {name: _value(hints[name], value, f"{where}.{name}") for name, value in given.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise located(error, where) from error


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{where} has no field {name!r}.{hint}", param=f"{where}.{name}", code="unknown_key"
            )


def located(error: ConfigError, where: str) -> ConfigError:
    """The same error with the full path of its field."""
    param = f"{where}.{error.param}" if error.param else where
    return ConfigError(f"{param}: {error.message}", param=param, code=error.code)


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) and is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is a table, not {value!r}.", param=where)
        return build(hint, value, where, general=())
    try:
        if isinstance(value, bool) and not _takes_bool(hint):  # pydantic would accept it as 1
            raise ConfigError(
                f"{where} = {value} is wrong: true and false have no meaning here.", param=where
            )
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        said = error.errors()[0]
        inside = "".join(f"[{part!r}]" for part in said["loc"])
        shown = repr(said["input"])[:100]
        message = said["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}{inside} = {shown} is wrong: {message}.", param=where) from None


def _takes_bool(hint: Any) -> bool:
    return hint in (bool, Any) or bool in getattr(hint, "__args__", ())


@lru_cache(256)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
