"""What a record is: `{"text"}`, `{"messages"}` or `{"prompt", "completion"}`."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
FIELDS = ("text", "messages", "prompt", "completion", "tools")
_SHAPES = ('{"text": ...}', '{"messages": [...]}', '{"prompt": ..., "completion": ...}')


def shapes() -> str:
    return ", ".join(_SHAPES)


def check_record(record: Record) -> str | None:
    """What is wrong with a record, or None."""
    if "messages" in record:
        return _check_messages(record["messages"])
    wanted = ("prompt", "completion") if "prompt" in record or "completion" in record else ("text",)
    for name in wanted:
        if name not in record:
            return f'no "{name}" in this record; it must be one of {", ".join(_SHAPES)}'
        if not isinstance(record[name], str):
            return f'"{name}" must be a string, not {type(record[name]).__name__}'
    return None


def _check_messages(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return '"messages" must be a list with at least one message'
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f'messages[{index}] must be an object with a "role"'
        if not isinstance(message.get("content"), str | list | None):
            return f'messages[{index}]: "content" must be text'
        if message.get("content") is None and not message.get("tool_calls"):
            return f'messages[{index}] has neither "content" nor "tool_calls"'
    if not any(message["role"] == "assistant" for message in messages):
        return "there is no assistant message to learn from"
    return None
