"""Tools on the wire: functions that a model may ask its caller to call."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rondo.client.wire import Wire


class Function(Wire):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Wire):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class FunctionName(Wire):
    name: str


class NamedTool(Wire):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
