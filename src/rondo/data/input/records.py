"""Validation of records: `{"text"}`, `{"messages"}` or `{"prompt", "completion"}`; a prompt with a preference pair of
answers; or one answer with a boolean label."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
PAIR = ("chosen", "rejected")


def check_record(record: Record) -> str | None:
    """Returns the problem of a record, or None."""
    judged = PAIR if any(name in record for name in PAIR) else ("completion",) if "label" in record else ()
    if judged:
        return _check_judged(record, judged)
    if "messages" in record:
        return _check_messages(record["messages"]) or _check_learned(record["messages"])
    wanted = ("prompt", "completion") if "prompt" in record or "completion" in record else ("text",)
    for name in wanted:
        if name not in record:
            return f'no "{name}" in this record'
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
    return None


def _check_learned(messages: list[dict[str, Any]]) -> str | None:
    if not any(is_learned(message) for message in messages):
        return "there is no assistant message to learn from"
    return None


def is_learned(message: dict[str, Any]) -> bool:
    """Whether SFT trains on the message: an assistant's, unless its `weight` is 0 (OpenAI's fine-tuning format)."""
    return bool(message["role"] == "assistant" and message.get("weight", 1) != 0)


def _check_judged(record: Record, answers: tuple[str, ...]) -> str | None:
    """Checks a prompt with answers that have a preference or a label."""
    if "messages" in record:
        problem = _check_messages(record["messages"])
    elif isinstance(record.get("prompt"), str):
        problem = None
    else:
        problem = 'there is no "prompt" that is a string, and no "messages"'
    for name in answers:
        if not is_answer(record.get(name)):
            problem = problem or f'"{name}" must be a string, or a list with one message of the assistant'
    if "label" in record and not isinstance(record["label"], bool):
        problem = problem or '"label" must be true or false'
    return problem


def is_answer(answer: Any) -> bool:
    if isinstance(answer, list):
        return len(answer) == 1 and _check_messages(answer) is None and answer[0]["role"] == "assistant"
    return isinstance(answer, str)
