"""Items of responses and conversations: messages, calls of functions, their outputs, reasoning."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.objects.pages import ObjectPage, PageQuery

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}

Item = dict[str, Any]


def items_of(given: object, param: str = "input") -> list[Item]:
    """Items in their complete form, each with an id, of a text or a list of items."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise InvalidRequest(f"{param} is a text or a list of items.", param=param)
    return [_complete(each) for each in given]


def page_of_items(items: Sequence[Item], query: PageQuery) -> ObjectPage[Item]:
    ordered = list(items) if query.order == "asc" else list(items)[::-1]
    if query.after is not None:
        ids = [each["id"] for each in ordered]
        if query.after not in ids:
            raise NotFound(f"There is no item {query.after[:100]!r} in this list.", param="after")
        ordered = ordered[ids.index(query.after) + 1 :]
    return ObjectPage(ordered[: query.limit], len(ordered) > query.limit)


def _complete(item: Item) -> Item:
    kind = item.get("type") or ("message" if "role" in item else None)
    if not isinstance(kind, str):
        raise InvalidRequest("An item has neither a type nor a role.", param="input")
    whole = {"type": kind, **item}
    if not isinstance(item.get("id"), str) or not item["id"]:
        whole["id"] = f"{PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}"
    if kind == "message":
        whole.setdefault("status", "completed")
        if isinstance(item.get("content"), str):
            whole["content"] = [_text_part(str(item.get("role")), item["content"])]
    return whole


def _text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
