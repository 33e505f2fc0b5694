"""What every body on the wire is: a field it does not know is an error."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Element = TypeVar("Element")

Many = Annotated[list[Element], Field(fail_fast=True)]
"""A list on the wire. What is wrong with it is told of its first wrong element: there may be millions, and an error for
each of them, and for each form that the list may have, would keep the server busy for minutes."""

_beginning = reprlib.Repr()
_beginning.maxlevel, _beginning.maxlist, _beginning.maxdict = 4, 20, 20
_beginning.maxstring = _beginning.maxother = _beginning.maxlong = 200


def shown(value: object) -> str:
    """A value for an error's message, where it may be huge."""
    text = _beginning.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    shapes: ClassVar[Mapping[str, str]] = {}
    """Where a field has other forms here than the usual ones, in words."""
