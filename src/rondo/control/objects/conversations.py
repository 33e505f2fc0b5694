"""Conversations: lists of items, to which each response that names one adds its input and its output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound
from rondo.control.objects.items import Item
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.store.clock import microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import conversation_items, conversations

_columns, _items = conversations.c, conversation_items.c


@dataclass(frozen=True)
class Conversation:
    id: str
    owner: str
    metadata: str
    """JSON."""
    created: int


class Conversations:
    """`owner=None` reaches the conversations of all owners."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, owner: str, metadata: Mapping[str, str], items: Sequence[Item]) -> Pending[Conversation]:
        made = Conversation(f"conv_{secrets.token_hex(16)}", owner, json.dumps(metadata), microseconds())

        def work(db: sa.Connection) -> Conversation:
            db.execute(sa.insert(conversations), vars(made))
            append_items(db, made.id, items)
            return made

        return self.store.write(work)

    def get(self, id: str, owner: str | None) -> Pending[Conversation]:
        return self.store.read(lambda db: conversation_of(db, id, owner))

    def update(self, id: str, owner: str | None, metadata: Mapping[str, str]) -> Pending[Conversation]:
        def work(db: sa.Connection) -> Conversation:
            conversation_of(db, id, owner)
            changed = sa.update(conversations).where(_columns.id == id)
            db.execute(changed, {"metadata": json.dumps(metadata)})
            return conversation_of(db, id, owner)

        return self.store.write(work)

    def delete(self, id: str, owner: str | None) -> Pending[None]:
        """Deletes it with its items. Responses stay."""

        def work(db: sa.Connection) -> None:
            conversation_of(db, id, owner)
            db.execute(sa.delete(conversation_items).where(_items.conversation == id))
            db.execute(sa.delete(conversations).where(_columns.id == id))

        return self.store.write(work)

    def add(self, id: str, owner: str | None, items: Sequence[Item]) -> Pending[None]:
        def work(db: sa.Connection) -> None:
            conversation_of(db, id, owner)
            append_items(db, id, items)

        return self.store.write(work)

    def items(self, id: str, owner: str | None, query: PageQuery) -> Pending[ObjectPage[Item]]:
        wanted = sa.select(_items.item).where(_items.conversation == id)

        def work(db: sa.Connection) -> ObjectPage[Item]:
            conversation_of(db, id, owner)
            rows, more = rows_of_page(db, wanted, _items.number, _items.id, query)
            return ObjectPage([json.loads(row.item) for row in rows], more)

        return self.store.read(work)

    def item(self, id: str, owner: str | None, item: str) -> Pending[Item]:
        def work(db: sa.Connection) -> Item:
            conversation_of(db, id, owner)
            found: Any = db.execute(
                sa.select(_items.item).where(_items.conversation == id, _items.id == item)
            ).scalar()
            if found is None:
                raise NotFound(f"There is no item {item[:100]!r} in {id}.", param="item_id")
            whole: Item = json.loads(found)
            return whole

        return self.store.read(work)

    def delete_item(self, id: str, owner: str | None, item: str) -> Pending[Conversation]:
        def work(db: sa.Connection) -> Conversation:
            found = conversation_of(db, id, owner)
            deleted = sa.delete(conversation_items).where(_items.conversation == id, _items.id == item)
            if db.execute(deleted.returning(_items.id)).first() is None:
                raise NotFound(f"There is no item {item[:100]!r} in {id}.", param="item_id")
            return found

        return self.store.write(work)


def conversation_of(db: sa.Connection, id: str, owner: str | None) -> Conversation:
    row: Any = db.execute(sa.select(*_columns).where(_columns.id == id)).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(
            f"Conversation with id {id[:100]!r} not found.",
            param="conversation",
            code="conversation_not_found",
        )
    return Conversation(*row)


def append_items(db: sa.Connection, conversation: str, items: Sequence[Item]) -> None:
    if not items:
        return
    ids = [each["id"] for each in items]
    known = sa.select(_items.id).where(_items.conversation == conversation, _items.id.in_(ids))
    if len(set(ids)) != len(ids) or (there := db.execute(known).scalar()) is not None:
        named = ids[0] if len(set(ids)) != len(ids) else there
        raise Conflict(
            f"{conversation} has an item {named!r} already: give each item an id of its own, or none."
        )
    rows = [
        {"id": each["id"], "conversation": conversation, "item": json.dumps(each, ensure_ascii=False)}
        for each in items
    ]
    db.execute(sa.insert(conversation_items), rows)


def size_of_conversation(db: sa.Connection, conversation: str) -> int:
    """Characters of its items, at most their number of bytes."""
    size = sa.func.coalesce(sa.func.sum(sa.func.length(_items.item)), 0)
    return int(db.execute(sa.select(size).where(_items.conversation == conversation)).scalar_one())


def items_of_conversation(db: sa.Connection, conversation: str) -> list[Item]:
    wanted = sa.select(_items.item).where(_items.conversation == conversation).order_by(_items.number)
    return [json.loads(text) for text in db.execute(wanted).scalars()]
