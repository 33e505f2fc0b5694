"""What every body on the wire is: a field it does not know is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    shapes: ClassVar[Mapping[str, str]] = {}
    """Where a field has other forms here than the usual ones, in words."""
