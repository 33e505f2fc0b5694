"""Tools in requests: functions whose calls a model may request from its caller."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.wire import Many, WireModel


class FunctionDefinition(WireModel):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(WireModel):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class FunctionName(WireModel):
    name: str


class NamedTool(WireModel):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: Many[NamedTool] = Field(min_length=1)


class AllowedChoice(WireModel):
    """Restriction of the given tools for this request."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


def chosen(tools: list[ToolDefinition], choice: ToolChoice | None) -> list[ToolDefinition]:
    """Tools that the model may call."""
    if choice == "none":
        return []
    if not tools and choice not in (None, "auto"):
        raise InvalidRequest("tool_choice needs tools to choose from.", param="tool_choice")
    known = {tool.function.name for tool in tools}
    named = _names(choice)
    for name in named:
        if name not in known:
            raise InvalidRequest(
                f"tool_choice names {name!r}, which is none of the tools.", param="tool_choice"
            )
    allowed = isinstance(choice, AllowedChoice)
    return [tool for tool in tools if tool.function.name in named] if allowed else tools


def demanded(tools: list[ToolDefinition], choice: ToolChoice | None) -> list[ToolDefinition]:
    """Tools of which the model must call one, if any."""
    if isinstance(choice, AllowedChoice):
        return chosen(tools, choice) if choice.allowed_tools.mode == "required" else []
    if isinstance(choice, NamedTool):
        return [tool for tool in tools if tool.function.name == choice.function.name]
    return tools if choice == "required" else []


def _names(choice: ToolChoice | None) -> set[str]:
    if isinstance(choice, AllowedChoice):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return {choice.function.name} if isinstance(choice, NamedTool) else set()
