"""The base of all request bodies: an unknown field is an error, and an explicit null means the field's default."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Element = TypeVar("Element")

Many = Annotated[list[Element], Field(fail_fast=True)]
"""List in a request. Validation stops at the first invalid element: there may be millions, and an error for each of
them, and for each form of the list, would block the server for minutes."""

CacheSalt = Annotated[str, Field(min_length=1, max_length=4096)]
"""vLLM's `cache_salt`: only requests with the same salt share prefixes."""

_beginning = reprlib.Repr()
_beginning.maxlevel, _beginning.maxlist, _beginning.maxdict = 4, 20, 20
_beginning.maxstring = _beginning.maxother = _beginning.maxlong = 200


def shown(value: object) -> str:
    """A value for an error's message, where it may be huge."""
    text = _beginning.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _accept_null(schema: Any) -> None:
    """Makes a null valid for each field of a model that has a default, and replaces it by that default.

    This is done in the schema, because a validator in Python would convert the whole body to Python objects first."""
    while schema["type"] != "model-fields":
        if "schema" not in schema:
            return
        schema = schema["schema"]
    for field in schema["fields"].values():
        default = field["schema"]
        if default["type"] == "default" and default["schema"]["type"] != "nullable":
            default["schema"] = core_schema.no_info_after_validator_function(
                _or_default(default), core_schema.nullable_schema(default["schema"])
            )


def _or_default(schema: Any) -> Callable[[Any], Any]:
    make = schema.get("default_factory", lambda: schema["default"])
    return lambda value: make() if value is None else value


class WireModel(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    shapes: ClassVar[Mapping[str, str]] = {}
    """Where a field has other forms here than the usual ones, in words."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Validated fields without effect: the response header `x-rondo-ignored` lists them for each request."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _accept_null(handler.resolve_ref_schema(schema))
        return schema

    def ignored(self) -> list[str]:
        """The fields of this request that have no effect, sorted."""
        given = self.model_fields_set & self.without_effect
        return sorted(name for name in given if getattr(self, name) is not None)
