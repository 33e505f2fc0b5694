"""Conversion of OpenAI API messages to the format that chat templates, written for transformers, expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.base.errors import InvalidRequest

_ASKS_FOR_NO_CONTENT = re.compile(
    r"""message(?:\.content|\[['"]content['"]\])\s+is\s+(?:not\s+)?none""", re.I
)

NEED_CONTENT = frozenset({"system", "developer", "user", "tool"})


class CallArguments(dict[str, Any]):
    """Arguments of a call. Most templates use them as an object; string concatenation yields their JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __radd__(self, before: str) -> str:
        return before + str(self)

    def __add__(self, after: str) -> str:
        return str(self) + after


def adapt_messages(messages: Sequence[Mapping[str, Any]], template: str) -> list[dict[str, Any]]:
    for number, message in enumerate(messages):
        _check_content(number, message, template)
    return [_adapt(message, template) for message in messages]


def _check_content(number: int, message: Mapping[str, Any], template: str) -> None:
    """Raises for a message without content. An assistant message may consist of calls only; for other roles most
    templates would fail, or write "None"."""
    if message["role"] in NEED_CONTENT and message.get("content") is None and "content" in template:
        raise InvalidRequest(
            f"messages: message {number} ({message['role']}) has no content, which the chat template needs.",
            param="messages",
        )


def _adapt(message: Mapping[str, Any], template: str) -> dict[str, Any]:
    adapted = dict(message)
    names = [adapted.pop(name, None) for name in ("reasoning", "reasoning_content")]
    reasoning = names[0] or names[1]
    calls = adapted.pop("tool_calls", None)
    if calls:
        adapted["tool_calls"] = [_with_arguments(call) for call in calls]
    if adapted["role"] == "assistant" and adapted.get("content") is None:
        # Some templates detect calls by missing content; the others accept a string in any case.
        told = calls and _ASKS_FOR_NO_CONTENT.search(template)
        adapted["content"] = None if told else ""
    if adapted["role"] == "developer" and "developer" not in template:
        adapted["role"] = "system"
    if reasoning:
        adapted |= _reasoning(reasoning, adapted, template)
    return adapted


def _reasoning(text: str, message: Mapping[str, Any], template: str) -> dict[str, Any]:
    """The reasoning under the template's field name; gpt-oss's template permits no content beside it in a message with
    calls."""
    if "message.thinking" in template or "['thinking']" in template:
        before = f"{text}\n{message['content']}" if message.get("tool_calls") and message["content"] else text
        return {"thinking": before} | ({"content": ""} if message.get("tool_calls") else {})
    return {"reasoning_content": text}


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest("messages: each of tool_calls must have a function.", param="messages")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(given: Any) -> CallArguments:
    if isinstance(given, Mapping):
        return CallArguments(given)
    try:
        value = json.loads(given) if given else {}
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"messages: the arguments of a tool call must be a JSON object; got {str(given)[:80]!r}.",
            param="messages",
        )
    return CallArguments(value)
