"""Schemas of the events in streams, for the OpenAPI document: the JSON after each `data: `."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class CallDeltaSchema(BaseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: dict[str, Any]


class ChatDelta(BaseModel):
    """`content` is empty for a token without text."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDeltaSchema] | None = None


class StreamChoice(BaseModel):
    index: int
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_version: int | None = None
    token_ids: list[int] | None = None
    weight_versions: list[int] | None = None


class ChatStreamChoice(StreamChoice):
    delta: ChatDelta


class CompletionStreamChoice(StreamChoice):
    text: str
    prompt_token_ids: list[int] | None = None


class StreamEvent(BaseModel):
    """The last event before `[DONE]` has no choices and the usage, where `stream_options` requests it."""

    id: str
    created: int
    model: str
    usage: dict[str, Any] | None = None


class ChatCompletionChunk(StreamEvent):
    object: Literal["chat.completion.chunk"]
    prompt_token_ids: list[int] | None = None
    choices: list[ChatStreamChoice]


class CompletionChunk(StreamEvent):
    object: Literal["text_completion"]
    choices: list[CompletionStreamChoice]


class ResponseEvent(BaseModel):
    """OpenAI's typed event; further fields depend on the type, which is also the name of the event."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: dict[str, Any] | None = None
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    delta: str | None = None
