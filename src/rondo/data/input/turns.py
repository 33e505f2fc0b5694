"""Turns of a conversation in the spellings of published data sets, as OpenAI messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
CALLS = ("function_call", "tool_call")
"""Roles of turns whose text is the JSON of a tool call."""
_TRANSCRIPT = re.compile(r"\n\n(Human|Assistant): ?")


class RecordProblem(ValueError):
    """A value of a record that its format does not permit."""


def string_of(value: Any, name: str) -> str:
    """The text of a field. Numbers, such as answers of mathematics, become their JSON text."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    kind = "null" if value is None else type(value).__name__
    raise RecordProblem(f'"{name}" must be a string, not {kind}')


def messages_of(turns: Any, name: str) -> list[Message]:
    """Turns as messages: `from` and `value` become `role` and `content`, OpenAI's messages stay unchanged."""
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise RecordProblem(f'"{name}" must be a list with at least one message')
    return [_message(turn, f"{name}[{index}]") for index, turn in enumerate(turns)]


def _message(turn: Any, where: str) -> Message:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role", turn.get("from")), str):
        raise RecordProblem(f'{where} must be an object with a "role", or a "from" in ShareGPT records')
    if "from" not in turn:
        return _with_tool_calls(dict(turn))
    role = ROLES.get(str(turn["from"]).lower())
    if role is None:
        raise RecordProblem(f'{where}: "from" is {turn["from"]!r}; it must be one of {", ".join(ROLES)}')
    value = turn.get("value")
    if turn["from"] in CALLS:
        return {"role": role, "content": None, "tool_calls": _calls(value, where)}
    weight = {"weight": turn["weight"]} if "weight" in turn else {}
    return {"role": role, "content": string_of(value, f"{where}.value"), **weight}


def _with_tool_calls(message: Message) -> Message:
    """OpenAI's former `function_call` and role `function` under their present names."""
    if message.get("role") == "function":
        message["role"] = "tool"
    if call := message.pop("function_call", None):
        message["tool_calls"] = [_call(call, "function_call")]
    return message


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RecordProblem(f"{where}.value must be the JSON of a tool call ({error})") from None
    return [_call(each, where) for each in (found if isinstance(found, list) else [found])]


def _call(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise RecordProblem(f'{where}: a tool call must be {{"name": ..., "arguments": {{...}}}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    return {"type": "function", "function": {"name": value["name"], "arguments": arguments}}


def tools_of(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools of a record: a list or its JSON text, of OpenAI's tools or of bare functions."""
    name = "tools" if record.get("tools") else "functions"
    tools = record.get(name)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise RecordProblem(f'"{name}" must be a list, or its JSON text ({error})') from None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        raise RecordProblem(f'"{name}" must be a list of objects')
    return [
        dict(each) if "function" in each else {"type": "function", "function": dict(each)} for each in tools
    ]


def from_transcript(text: Any) -> list[Message] | None:
    """Messages of a transcript as in Anthropic's HH data: "\\n\\nHuman: ...\\n\\nAssistant: ..."; None for other
    values."""
    if not isinstance(text, str) or not text.startswith("\n\nHuman:"):
        return None
    _, *parts = _TRANSCRIPT.split(text)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[speaker], "content": said.strip()}
        for speaker, said in zip(parts[::2], parts[1::2], strict=True)
    ]
