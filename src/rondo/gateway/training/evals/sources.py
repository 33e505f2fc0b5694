"""Records and samples of a data source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.objects.completions import CompletionFilter, Completions
from rondo.control.objects.pages import PageQuery
from rondo.control.objects.responses import Responses, StoredResponse
from rondo.control.store.clock import MICROSECONDS
from rondo.gateway.training.evals.requests import StoredCompletions, StoredResponsesSource
from rondo.gateway.training.evals.sampling import chat_sample, response_sample

LONGEST_LINE = 16 << 20
MOST_ITEMS = 100_000
MOST_RESPONSES = 10_000
PAGE = 100
Record = dict[str, Any]
"""`item`, and `sample` if there is one."""


def lines_of(file: Path) -> Iterator[Record]:
    """Records of an uploaded file. Raises an InvalidRequest that names the wrong line."""
    with file.open("rb") as lines:
        number = 0
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("item"), dict):
                raise InvalidRequest(
                    f'Line {number} of the file is not of the form {{"item": {{...}}}}.',
                    param="data_source.source.id",
                )
            if not isinstance(record.get("sample"), dict | None):
                raise InvalidRequest(
                    f"Line {number} of the file: sample is an object.", param="data_source.source.id"
                )
            yield record


def responses_of(
    responses: Responses, owner: str | None, wanted: StoredResponsesSource, metadata: Mapping[str, Any] | None
) -> Iterator[Record]:
    """Completed responses of the owner that match, the oldest first. It blocks."""
    told = {**(metadata or {}), **(wanted.metadata or {})}
    found = 0
    for stored in responses.completed(owner):
        if not _in_time(stored, wanted) or not _matches(stored.body, wanted, told):
            continue
        found += 1
        if found > MOST_RESPONSES:
            raise InvalidRequest(
                f"More than {MOST_RESPONSES:,} responses match: limit them with created_after or metadata.",
                param="data_source.source",
            )
        yield {"item": _item(stored), "sample": response_sample(stored.body)}


def completions_of(
    completions: Completions, owner: str | None, wanted: StoredCompletions, metadata: Mapping[str, str] | None
) -> Iterator[Record]:
    """Stored chat completions of the owner that match, the oldest first. It blocks."""
    told = CompletionFilter(wanted.model, {**(metadata or {}), **(wanted.metadata or {})})
    before = float("inf") if wanted.created_before is None else wanted.created_before
    found, after, more = 0, None, True
    while more:
        page = completions.page(owner, PageQuery(after, PAGE, "asc"), told).result()
        for each in page.data:
            if not (wanted.created_after or 0) <= each.get("created", 0) <= before:
                continue
            found += 1
            if found > (wanted.limit or MOST_RESPONSES):
                if wanted.limit is not None:
                    return
                raise InvalidRequest(
                    f"More than {MOST_RESPONSES:,} completions match: limit them with created_after or limit.",
                    param="data_source.source",
                )
            with suppress(NotFound):  # deleted meanwhile
                messages = completions.messages(each["id"], owner).result()
                yield {"item": _item_of_completion(each, messages), "sample": chat_sample(each)}
        after, more = page.data[-1]["id"] if page.data else None, page.has_more


def _item_of_completion(body: Mapping[str, Any], messages: Iterable[Mapping[str, Any]]) -> Record:
    return {
        "id": body["id"],
        "input": [{name: value for name, value in each.items() if name != "id"} for each in messages],
        "model": body.get("model"),
        "metadata": body.get("metadata") or {},
    }


def _in_time(stored: StoredResponse, wanted: StoredResponsesSource) -> bool:
    at = stored.created / MICROSECONDS
    return (wanted.created_after or 0) <= at and (
        wanted.created_before is None or at <= wanted.created_before
    )


def _matches(body: Mapping[str, Any], wanted: StoredResponsesSource, metadata: Mapping[str, Any]) -> bool:
    tools = {each.get("name") or each.get("type") for each in body.get("tools") or ()}
    found = body.get("metadata") or {}
    conditions = (
        all(found.get(name) == value for name, value in metadata.items()),
        wanted.model in (None, body.get("model")),
        wanted.temperature in (None, body.get("temperature")),
        wanted.top_p in (None, body.get("top_p")),
        wanted.users is None or body.get("user") in wanted.users,
        wanted.tools is None or tools >= set(wanted.tools),
        wanted.reasoning_effort in (None, (body.get("reasoning") or {}).get("effort")),
        wanted.instructions_search is None
        or wanted.instructions_search in str(body.get("instructions") or ""),
    )
    return all(conditions)


def _item(stored: StoredResponse) -> Record:
    body = stored.body
    return {
        "id": stored.id,
        "input": stored.input_items,
        "instructions": body.get("instructions"),
        "model": body.get("model"),
        "metadata": body.get("metadata") or {},
    }


def check_item(record: Mapping[str, Any], schema: Mapping[str, Any], place: int) -> None:
    """Raises if an item lacks a field that the eval's schema requires."""
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in record["item"]:
            raise InvalidRequest(
                f"Item {place + 1} of the data source lacks {name!r}, which item_schema requires.",
                param="data_source",
            )
