"""Conversion of the items of the Responses API to chat messages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.wire import Many, WireModel, shown

Status = Literal["in_progress", "completed", "incomplete"]


class _Item(WireModel):
    id: str | None = None
    status: Status | None = None


class ResponseTextPart(WireModel):
    """Text of the user or the assistant; the assistant's may include annotations and log-probabilities."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class ReasoningPart(WireModel):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Many[ResponseTextPart]
    phase: str | None = None


class CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str = Field(min_length=1)
    arguments: str


class OutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[ResponseTextPart]


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: Many[ReasoningPart] = Field(default_factory=list)
    content: Many[ReasoningPart] | None = None
    encrypted_content: None = None


ITEMS: dict[str, type[MessageItem | CallItem | OutputItem | ReasoningItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "reasoning": ReasoningItem,
}


def messages_of(input: str | list[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Reasoning and calls join the assistant's message that they belong to."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(input, str):
        return [*messages, {"role": "user", "content": input}]
    if not input:
        raise InvalidRequest("input is an empty list: give at least one item.", param="input")
    turn = _Turn(messages)
    for index, raw in enumerate(input):
        match _read(index, raw):
            case MessageItem(role="assistant", content=content):
                turn.say(_text(content))
            case MessageItem(role=role, content=content):
                turn.end()
                messages.append({"role": role, "content": _text(content)})
            case CallItem() as item:
                turn.call(item)
            case OutputItem(call_id=id, output=output):
                turn.end()
                messages.append({"role": "tool", "tool_call_id": id, "content": _text(output)})
            case ReasoningItem() as item:
                turn.reason("".join(part.text for part in item.content or item.summary))
    turn.end()
    if not messages:
        raise InvalidRequest(
            "input has nothing but empty reasoning: give at least one message.", param="input"
        )
    return messages


class _Turn:
    """The assistant's message that is being put together: reasoning, then text, then calls."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._open: dict[str, Any] = {}

    def reason(self, text: str) -> None:
        if "content" in self._open or "tool_calls" in self._open:
            self.end()
        if text:
            self._open["reasoning"] = self._open.get("reasoning", "") + text

    def say(self, text: str) -> None:
        if "content" in self._open or "tool_calls" in self._open:
            self.end()
        self._open["content"] = text

    def call(self, item: CallItem) -> None:
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        self._open.setdefault("tool_calls", []).append(call)

    def end(self) -> None:
        if self._open:
            self._messages.append({"role": "assistant", "content": None} | self._open)
            self._open = {}


def _read(index: int, raw: dict[str, Any]) -> MessageItem | CallItem | OutputItem | ReasoningItem:
    kind = raw.get("type", "message")
    model = ITEMS.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(ITEMS)
        raise InvalidRequest(
            f"input.{index}: items of type {kind!r} are not supported; there are {known}.", param="input"
        )
    try:
        return model.model_validate(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("input", index, *first["loc"]))
        message = f"{where} is wrong ({first['msg']}); got {shown(first['input'])}."
        raise InvalidRequest(message, param="input") from None


def _text(content: str | list[ResponseTextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
