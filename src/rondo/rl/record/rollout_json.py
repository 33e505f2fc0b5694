"""Rollouts as JSON in the format of OpenAI's lists and objects, for the API and the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rondo.rl.record.query import RolloutSummary, Texts
from rondo.rl.record.reader import Page, Whole

LISTED = 400
"""Maximum characters of a text in a list; the single rollout has the whole text."""


def page(found: Page, texts: Mapping[str, Texts]) -> dict[str, Any]:
    data = [entry(each, texts.get(each.id)) for each in found.entries]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": found.more,
    }


def entry(of: RolloutSummary, texts: Texts | None) -> dict[str, Any]:
    facts = asdict(of)
    del facts["pieces"]
    said = {} if texts is None else {"prompt": _cut(texts.prompt), "text": _cut(texts.text)}
    shown: dict[str, Any] = _finite({"id": facts.pop("id"), "object": "rl.rollout", **facts, **said})
    return shown


def whole(of: Whole) -> dict[str, Any]:
    facts = entry(of.entry, None)
    said = {
        "messages": list(of.texts.messages),
        "facts": of.texts.facts,
        "text": of.texts.text,
        "detail": of.texts.detail,
    }
    shown: dict[str, Any] = _finite(facts | said | {"pieces": [asdict(piece) for piece in of.pieces]})
    return shown


def _finite(value: Any) -> Any:
    """The value without NaN and infinity, which JSON lacks and a diverged policy can produce."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    return [_finite(own) for own in value] if isinstance(value, list | tuple) else value


def _cut(text: str) -> str:
    return text if len(text) <= LISTED else text[:LISTED] + "..."
