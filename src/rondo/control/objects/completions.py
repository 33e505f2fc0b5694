"""Stored chat completions: rows of the table of responses in a state of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.config import ResponsesConfig
from rondo.control.objects.items import Item
from rondo.control.objects.pages import ObjectPage, PageQuery
from rondo.control.objects.responses import CHAT, alive
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import responses

AT_A_TIME = 100

_columns = responses.c


@dataclass(frozen=True)
class CompletionFilter:
    model: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def fits(self, completion: Mapping[str, Any]) -> bool:
        if self.model is not None and completion.get("model") != self.model:
            return False
        metadata = completion.get("metadata") or {}
        return all(metadata.get(name) == value for name, value in self.metadata.items())


class Completions:
    """`owner=None` reaches the completions of all owners."""

    def __init__(self, store: Store, config: ResponsesConfig) -> None:
        self.store, self.config = store, config

    def keep(self, owner: str, completion: Mapping[str, Any], messages: Sequence[Item]) -> Pending[None]:
        now, seconds = microseconds(), self.config.keep_seconds
        row = {
            "id": completion["id"],
            "owner": owner,
            "state": CHAT,
            "response": _text(completion),
            "input": _text(messages),
            "created": now,
            "expires": None if seconds is None else now + int(seconds * MICROSECONDS),
        }

        def work(db: sa.Connection) -> None:
            """A client may have chosen the id by its request id: its latest completion replaces the one before."""
            same = sa.and_(_columns.id == row["id"], _columns.owner == owner, _columns.state == CHAT)
            db.execute(sa.delete(responses).where(same))
            db.execute(sa.insert(responses), row)

        return self.store.write(work)

    def get(self, id: str, owner: str | None) -> Pending[Item]:
        return self.store.read(lambda db: _parsed(_row(db, id, owner).response))

    def messages(self, id: str, owner: str | None) -> Pending[list[Item]]:
        def work(db: sa.Connection) -> list[Item]:
            messages: list[Item] = json.loads(_row(db, id, owner).input)
            return messages

        return self.store.read(work)

    def update(self, id: str, owner: str | None, metadata: Mapping[str, str]) -> Pending[Item]:
        def work(db: sa.Connection) -> Item:
            changed = _parsed(_row(db, id, owner).response) | {"metadata": dict(metadata)}
            db.execute(sa.update(responses).where(_columns.id == id), {"response": _text(changed)})
            return changed

        return self.store.write(work)

    def delete(self, id: str, owner: str | None) -> Pending[None]:
        def work(db: sa.Connection) -> None:
            _row(db, id, owner)
            db.execute(sa.delete(responses).where(_columns.id == id))

        return self.store.write(work)

    def page(
        self, owner: str | None, query: PageQuery, wanted: CompletionFilter
    ) -> Pending[ObjectPage[Item]]:
        return self.store.read(lambda db: _page(db, owner, query, wanted))


def _page(
    db: sa.Connection, owner: str | None, query: PageQuery, wanted: CompletionFilter
) -> ObjectPage[Item]:
    """Rows are read in parts until the page and one more completion have passed the filter."""
    descending = query.order == "desc"
    rows = sa.select(_columns.number, _columns.response).where(_columns.state == CHAT, alive())
    if owner is not None:
        rows = rows.where(_columns.owner == owner)
    rows = rows.order_by(_columns.number.desc() if descending else _columns.number).limit(AT_A_TIME)
    beyond: Callable[[int], sa.ColumnElement[bool]] = (
        _columns.number.__lt__ if descending else _columns.number.__gt__
    )
    place = None if query.after is None else _place(db, query.after, owner)
    found: list[Item] = []
    while len(found) <= query.limit:
        part = db.execute(rows if place is None else rows.where(beyond(place))).all()
        found += [each for each in (_parsed(row.response) for row in part) if wanted.fits(each)]
        if len(part) < AT_A_TIME:
            break
        place = part[-1].number
    return ObjectPage(found[: query.limit], len(found) > query.limit)


def _place(db: sa.Connection, after: str, owner: str | None) -> int:
    try:
        place: int = _row(db, after, owner).number
    except NotFound:
        raise InvalidRequest(
            f"There is no completion {after[:100]!r}: set 'after' to the id of the last completion of a page.",
            param="after",
        ) from None
    return place


def _row(db: sa.Connection, id: str, owner: str | None) -> Any:
    one = sa.select(_columns.number, _columns.owner, _columns.response, _columns.input)
    row = db.execute(one.where(_columns.id == id, _columns.state == CHAT, alive())).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(
            f"Chat completion {id[:100]!r} not found: only completions of requests with store: true are stored.",
            param="completion_id",
            code="completion_not_found",
        )
    return row


def _parsed(text: str) -> Item:
    completion: Item = json.loads(text)
    return completion


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
