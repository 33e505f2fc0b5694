"""Requests to the sampled model, and samples from its responses.

A sample is stored as `output_text`, `output_tools`, `model`, `finish_reason` and `usage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.gateway.training.evals.requests import (
    CompletionsSource,
    ItemReference,
    MessageTemplate,
    SampledSource,
    TemplateMessage,
)

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
Message = dict[str, Any]


def path_and_body(source: SampledSource, item: Mapping[str, Any]) -> tuple[str, bytes]:
    """Route and body of the request for one item."""
    messages = messages_of(source, item)
    body: dict[str, Any] = {"model": source.model}
    params = source.sampling_params
    if params is not None:
        told = params.model_dump(exclude_none=True)
        for name in ("max_completion_tokens", "max_completions_tokens"):
            told.pop(name, None)
        body |= told
    if isinstance(source, CompletionsSource):
        limit = (
            {}
            if params is None or params.max_tokens is None
            else {"max_completion_tokens": params.max_tokens}
        )
        return CHAT, json.dumps({**body, **limit, "messages": messages}).encode()
    if params is not None and params.max_tokens is not None:
        body["max_output_tokens"] = params.max_tokens
    if (effort := body.pop("reasoning_effort", None)) is not None:
        body["reasoning"] = {"effort": effort}
    return RESPONSES, json.dumps({**body, "input": messages, "store": False}).encode()


def messages_of(source: SampledSource, item: Mapping[str, Any]) -> list[Message]:
    """Messages of one item. Raises an InvalidRequest if the item lacks a field."""
    told = source.input_messages
    chat = isinstance(source, CompletionsSource)
    if isinstance(told, MessageTemplate):
        return [_filled(each, item, chat) for each in told.template]
    if isinstance(told, ItemReference):
        return _referenced(told.item_reference, item)
    return []


def _filled(message: TemplateMessage, item: Mapping[str, Any], chat: bool) -> Message:
    return {"role": message.role, "content": _content(message.content, item, chat)}


def _content(content: Any, item: Mapping[str, Any], chat: bool) -> Any:
    if isinstance(content, str):
        return _fill(content, item)
    if isinstance(content, list):
        parts = [_part(each, item, chat) for each in content]
        return parts if any(each["type"] not in ("text", "input_text") for each in parts) else _joined(parts)
    part = _part(content, item, chat)
    return part.get("text", [part])


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)


def _part(part: Any, item: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    if isinstance(part, str):
        part = {"type": "input_text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
        return {"type": "text" if chat else "input_text", "text": _fill(part["text"], item)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        url = _fill(part["image_url"], item)
        return {"type": "image_url", "image_url": {"url": url}} if chat else {**part, "image_url": url}
    raise InvalidRequest(
        f"data_source.input_messages: a part of the type {kind!r} is not supported: use input_text or input_image.",
        param="data_source.input_messages",
    )


def _fill(text: str, item: Mapping[str, Any]) -> str:
    from rondo.graders.definition.templates import NotInOutput, template
    from rondo.graders.score import Sample

    try:
        return template(text, "input_messages").fill(Sample("", "", metadata={"item": item}))
    except NotInOutput as error:
        raise InvalidRequest(
            f"data_source.input_messages: {error}: messages may use the item only.",
            param="data_source.input_messages",
        ) from error


def _referenced(path: str, item: Mapping[str, Any]) -> list[Message]:
    """Messages at a path of the item: a list of them, or the text of one."""
    text = _fill("{{ " + path + " }}", item)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(each, dict) and "role" in each for each in found):
        return found
    return [{"role": "user", "content": text}]


def sample_of(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The sample in a model's response."""
    return response_sample(body) if path == RESPONSES else chat_sample(body)


def chat_sample(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sample in a response of `/v1/chat/completions`."""
    choice = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return {
        "model": body.get("model", ""),
        "output_text": message.get("content") or "",
        "output_tools": message.get("tool_calls") or [],
        "finish_reason": choice.get("finish_reason") or "stop",
        "usage": _usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), details),
    }


def response_sample(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sample in a response of `/v1/responses`."""
    texts, tools = [], []
    for each in body.get("output") or ():
        if each.get("type") == "message":
            texts += [part.get("text", "") for part in each.get("content") or () if "text" in part]
        elif each.get("type") == "function_call":
            function = {"name": each.get("name"), "arguments": each.get("arguments")}
            tools.append({"id": each.get("call_id"), "type": "function", "function": function})
    usage = body.get("usage") or {}
    details = usage.get("input_tokens_details") or {}
    return {
        "model": body.get("model", ""),
        "output_text": "".join(texts),
        "output_tools": tools,
        "finish_reason": "length" if body.get("status") == "incomplete" else "stop",
        "usage": _usage(usage.get("input_tokens"), usage.get("output_tokens"), details),
    }


def _usage(read: int | None, written: int | None, details: Mapping[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": read or 0,
        "completion_tokens": written or 0,
        "total_tokens": (read or 0) + (written or 0),
        "cached_tokens": details.get("cached_tokens") or 0,
    }
