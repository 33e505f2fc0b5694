"""Tools: Python functions that a policy can call in an episode. Their schemas are derived from their signatures."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.metrics import counter
from rondo.rl.environments.user_code import Aside, Late
from rondo.text.conversation.answers import ParsedCall

log = get_logger(__name__)
_calls = counter("tool_calls", "Tool calls in episodes by outcome.", ("tool", "outcome"))

SECONDS = 10.0
LONGEST_RESULT = 4096
"""Characters; a longer result is truncated with a note."""


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""
    function: Callable[..., Any]
    """Plain function or coroutine function."""
    takes: type[BaseModel]
    seconds: float = SECONDS

    @property
    def shown(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {"name": self.name, "description": self.about, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def tool(function: Callable[..., Any], seconds: float = SECONDS) -> Tool:
    """`function` as a tool, with its name, its docstring and its annotated parameters."""
    name = function.__name__
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"the tool {name} has the parameter {parameter}: each must have a name of its own that a call can give."
            )
        if parameter.name not in hints:
            raise ConfigError(
                f"the tool {name}: say the type of {parameter.name}, as in {parameter.name}: int."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    takes = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = takes.model_json_schema()
    return Tool(name, inspect.getdoc(function) or "", _without_titles(schema), function, takes, seconds)


def as_tools(given: Sequence[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    return tuple(each if isinstance(each, Tool) else tool(each) for each in given)


async def answer_call(tools: Sequence[Tool], call: ParsedCall, aside: Aside) -> dict[str, Any]:
    """Run a tool call and return the tool message. Errors are returned to the policy, which can retry, and are
    counted.
    """
    known = {tool.name: tool for tool in tools}
    called = known.get(call.name)
    if called is None:
        outcome, text = "unknown", f"error: there is no tool {call.name!r}. Tools: {', '.join(known)}."
    else:
        outcome, text = await _run(called, call, aside)
    _calls.labels(call.name if called else "?", outcome).inc()
    if len(text) > LONGEST_RESULT:
        text = f"{text[:LONGEST_RESULT]}... ({len(text) - LONGEST_RESULT} more characters)"
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}


async def _run(tool: Tool, call: ParsedCall, aside: Aside) -> tuple[str, str]:
    arguments = call.object
    if arguments is None:
        return "arguments", f"error: the arguments of {tool.name} must be a JSON object."
    try:
        taken = tool.takes.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return "arguments", f"error: {tool.name}: {where}: {first['msg']}."
    try:
        named = {name: getattr(taken, name) for name in tool.takes.model_fields}
        result = await aside.call(tool.seconds, tool.function, **named)
        return "ok", result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    except Late:
        log.warning("a tool was late", extra={"tool": tool.name, "seconds": tool.seconds})
        return "timeout", f"error: {tool.name} gave nothing within {tool.seconds:g} s."
    except Exception as error:
        return "error", f"error: {type(error).__name__}: {error}"


def _without_titles(schema: Any) -> Any:
    """The schema without pydantic's titles, which repeat field names and cost tokens."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: _without_titles(each) for name, each in value.items()}
        elif key != "title":
            kept[key] = _without_titles(value)
    return kept
