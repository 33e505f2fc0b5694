"""The generate API: its prompts as queued requests to model routes, and results in its shape.

A prompt is a text, `{"prompt": ...}`, `{"messages": [...]}` or `{"text": ..., "images": [...]}`. Fields beside those of
the generate API itself pass to the engine, which validates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.item import ItemResult, read_item, read_refusal, read_result
from rondo.control.queue.views import QueuedRow
from rondo.control.queue.work import Group, Leased

MAX_TOKENS, NULL_MAX_TOKENS = 16, 128
"""Of a request without `max_tokens`, and of one with an explicit null."""
OWN = frozenset(
    ("prompts", "prompt", "messages", "text", "images", "request_type", "wait", "stream", "priority")
)
"""Fields that do not pass to the engine as they are."""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def path_and_body(prompt: object, common: Mapping[str, Any], model: str) -> tuple[str, bytes]:
    """Route and body of one prompt; fields of the prompt replace those of the request."""
    own: Mapping[str, Any] = prompt if isinstance(prompt, dict) else {"prompt": prompt}
    fields = {**common, **{name: value for name, value in own.items() if value is not None}}
    body = {name: value for name, value in fields.items() if name not in OWN and value is not None}
    body["model"] = model
    if fields.get("request_type") in ("embed", "embedding"):
        body.pop("max_tokens", None)
        body.pop("temperature", None)
        return EMBEDDINGS, msgspec.json.encode({**body, "input": _text(own)})
    if "max_tokens" not in body and "max_completion_tokens" not in body:
        asked = {**common, **own}
        body["max_tokens"] = NULL_MAX_TOKENS if "max_tokens" in asked else MAX_TOKENS
    body.setdefault("temperature", 0.0)
    messages = own.get("messages")
    if messages is None and ("images" in own or "tools" in body):
        messages = [{"role": "user", "content": _content(own)}]
    if messages is not None:
        return CHAT, msgspec.json.encode({**body, "messages": messages})
    return COMPLETIONS, msgspec.json.encode({**body, "prompt": _text(own)})


def _text(own: Mapping[str, Any]) -> str:
    text = own.get("prompt", own.get("text"))
    if not isinstance(text, str):
        raise InvalidRequest(
            'a prompt is a text, {"prompt": text}, {"messages": [...]} or {"text": text, "images": [...]}.',
            param="prompts",
        )
    return text


def _content(own: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    images = own.get("images") or []
    if not images:
        return _text(own)
    parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    return [*parts, {"type": "text", "text": _text(own)}]


def shown_result(row: QueuedRow) -> dict[str, Any]:
    """A result in the generate API's shape: `response` is None before the end and after an error."""
    shown: dict[str, Any] = {"request_id": row.id, "response": None, "error": None}
    if row.state == "done" and row.result is not None:
        return shown | of_result(read_result(row.result))
    if row.state == "dead":
        return shown | {"error": error_of(row.reason)}
    if row.state == "cancelled":
        return shown | {"error": "cancelled"}
    return shown


def error_of(reason: str | None) -> str:
    """The message of an engine's error, or the reason of a dead letter as it is."""
    refusal = read_refusal(reason or "")
    if refusal is None:
        return reason or "unknown error"
    error = msgspec.json.decode(refusal.body)
    error = error.get("error", error) if isinstance(error, dict) else error
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)


def of_result(result: ItemResult) -> dict[str, Any]:
    body = msgspec.json.decode(result.body)
    choices = body.get("choices") or [] if isinstance(body, dict) else []
    shown: dict[str, Any] = {
        "response": _response(body),
        "token_count": result.input_tokens + result.output_tokens,
        "prompt_tokens": result.input_tokens,
        "completion_tokens": result.output_tokens,
        "flop_count": result.flops,
    }
    if choices:
        first = choices[0]
        message = first.get("message") or {}
        shown["finish_reason"] = first.get("finish_reason")
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            shown["reasoning"] = reasoning
        if message.get("tool_calls"):
            shown["tool_calls"] = message["tool_calls"]
        if len(choices) > 1 or first.get("logprobs") or first.get("token_ids"):
            shown["choices"] = choices
    return shown


def _response(body: Any) -> Any:
    """Text of the first choice, the vector of an embedding, or the whole body of another route."""
    if not isinstance(body, dict):
        return body
    choices = body.get("choices")
    if choices:
        first = choices[0]
        return first["text"] if "text" in first else (first.get("message") or {}).get("content") or ""
    data = body.get("data")
    if body.get("object") == "list" and data and "embedding" in data[0]:
        return data[0]["embedding"]
    return body


def work_of(leased: Leased) -> dict[str, Any]:
    """A leased request in the shape of `get_work`; `path` and `body` have every field."""
    item = read_item(leased.body)
    body = msgspec.json.decode(item.body)
    shown: dict[str, Any] = {
        "request_id": leased.id,
        "lease": leased.lease,
        "model": leased.model,
        "path": item.path,
        "body": body,
        "prompt": "",
        "request_type": "embed" if item.path == EMBEDDINGS else "generate",
        "max_tokens": body.get("max_tokens"),
        "temperature": body.get("temperature"),
    }
    if item.path == CHAT:
        shown |= {"chat_request": body, "tools": body.get("tools"), "tool_choice": body.get("tool_choice")}
    elif item.path == EMBEDDINGS:
        shown["prompt"] = body.get("input")
    else:
        shown["prompt"] = body.get("prompt")
    return shown


def result_of_work(path: str, done: Mapping[str, Any]) -> ItemResult:
    """The result of `finish_work` as the response of the model route."""
    given, made = int(done.get("prompt_tokens") or 0), int(done.get("completion_tokens") or 0)
    if not given and not made:
        made = int(done.get("token_count") or 0)
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    response = done.get("response")
    choice: dict[str, Any] = {"index": 0, "finish_reason": done.get("finish_reason") or "stop"}
    body: dict[str, Any]
    if path == EMBEDDINGS:
        data = [{"object": "embedding", "index": 0, "embedding": response}]
        body = {"object": "list", "data": data, "usage": usage}
    elif path == CHAT:
        message = {"role": "assistant", "content": response}
        message |= {name: done[name] for name in ("reasoning", "tool_calls") if done.get(name)}
        body = {"object": "chat.completion", "choices": [choice | {"message": message}], "usage": usage}
    else:
        body = {"object": "text_completion", "choices": [choice | {"text": response}], "usage": usage}
    flops = done.get("flop_count")
    return ItemResult(
        200, str(done["request_id"]), msgspec.Raw(msgspec.json.encode(body)), given, made, flops
    )


def download_of(group: Group) -> tuple[bytes, bytes]:
    """Begin and end of ScalarLM's response file, around the members of the object of results."""
    facts = {
        "current_index": group.total - group.unfinished,
        "total_requests": group.total,
        "work_queue_id": group.name,
    }
    return b'{"results":{', b"}," + msgspec.json.encode(facts)[1:]
