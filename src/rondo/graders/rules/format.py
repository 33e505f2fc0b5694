"""Format checks of a completion: pattern, order of tags, JSON schema, length."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ConfigError
from rondo.graders.extras import needs
from rondo.graders.processes import pool
from rondo.graders.rules import schema
from rondo.graders.rules.pattern import fullmatch
from rondo.graders.score import Sample, Score, judged


def tag_content(text: str, tag: str) -> str | None:
    """Content of the last `<tag>...</tag>` without surrounding space; None if there is no complete pair."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def has_tags(text: str, tags: tuple[str, ...]) -> bool:
    """Whether each tag opens and closes exactly once, and each pair ends before the next one begins."""
    at = 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        start, end = text.index(opening), text.index(closing)
        if not at <= start < end:
            return False
        at = end + len(closing)
    return True


@dataclass(frozen=True)
class FormatChecker:
    """Each configured rule is a part, 0 or 1; the total is their mean."""

    pattern: str | None = None
    """Regular expression for the whole completion; `.` also matches newlines."""
    tags: tuple[str, ...] = ()
    max_characters: int | None = None
    json_schema: Mapping[str, Any] | None = None
    """JSON schema of the completion; `{}` is any JSON."""
    json_tag: str | None = None
    """Tag whose content is the JSON, if the JSON is not the whole completion."""

    def __post_init__(self) -> None:
        if (
            self.pattern is None
            and not self.tags
            and self.max_characters is None
            and self.json_schema is None
        ):
            raise ConfigError("a format checker needs a rule: pattern, tags, json_schema or max_characters.")
        if self.json_tag is not None and self.json_schema is None:
            raise ConfigError(
                "json_tag says where the JSON is; json_schema, what it is, is missing.", param="json_tag"
            )
        if self.json_schema is not None:
            needs("jsonschema_rs", "jsonschema-rs")
            schema.validator(json.dumps(self.json_schema))
        try:
            _ = None if self.pattern is None else re.compile(self.pattern, re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"the pattern {self.pattern!r} is not a regular expression: {error}."
            ) from error

    async def score(self, sample: Sample) -> Score:
        try:
            if self.pattern is None:
                parts = self.check(sample.completion)
            else:  # waits for another process
                parts = await asyncio.to_thread(self.check, sample.completion)
            if self.json_schema is not None:
                parts["json"] = await self._has_json(sample.completion)
        except TimeoutError as error:
            return Score("timeout", 0.0, detail=str(error))
        failed = ", ".join(name for name, passed in parts.items() if not passed)
        return judged({name: float(passed) for name, passed in parts.items()}, failed and f"failed: {failed}")

    def check(self, text: str) -> dict[str, bool]:
        """Checks all rules except the JSON schema. A pattern that takes too long raises `TimeoutError`."""
        parts: dict[str, bool] = {}
        if self.pattern is not None:
            parts["pattern"] = fullmatch(self.pattern, text)
        if self.tags:
            parts["tags"] = has_tags(text, self.tags)
        if self.max_characters is not None:
            parts["length"] = len(text) <= self.max_characters
        return parts

    async def _has_json(self, text: str) -> bool:
        inside = text if self.json_tag is None else tag_content(text, self.json_tag)
        if inside is None:
            return False
        written = json.dumps(self.json_schema)
        if len(inside) <= schema.SHORT:
            return schema.holds(written, inside)
        return bool(await pool.call(f"{schema.__name__}:holds", written, inside))
