"""Deletion of ended groups by set: many small groups share a transaction, a large group takes several."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from rondo.control.queue.rows import IDS, NEEDED
from rondo.control.queue.tally import Tally
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import bodies, counts, groups, requests, results

AT_A_TIME = 10_000
"""Rows that one transaction deletes: it holds up other writers for about 0.1 s."""

_OLD = (
    sa.select(groups.c.id)
    .where(groups.c.ended <= sa.bindparam("before"), ~NEEDED)
    .order_by(groups.c.ended)
    .limit(AT_A_TIME)
    .with_for_update(skip_locked=True)
)
_ROWS = (
    sa.select(requests.c.id, requests.c.model, requests.c.state)
    .where(requests.c.group_id.in_(IDS))
    .limit(AT_A_TIME)
)


def prune(store: Store, keep: float) -> Pending[int]:
    before = microseconds() - int(keep * MICROSECONDS)

    def all_of_them() -> int:
        total = 0
        while (number := store.write(lambda db: _prune(db, before)).result()) is not None:
            total += number
        return total

    return store.background(all_of_them)


def _prune(db: sa.Connection, before: int) -> int | None:
    """The number of groups deleted in this transaction; None if no group is old enough."""
    old = list(db.execute(_OLD, {"before": before}).scalars())
    if not old:
        return None
    rows = db.execute(_ROWS, {"ids": old}).all()
    for table in (bodies, results, requests):
        _delete(db, table, [row.id for row in rows])
    tally = Tally()
    for _, model, state in rows:
        tally.moved(model, state, None)
    tally.write(db)
    if len(rows) == AT_A_TIME:
        return 0
    _delete(db, groups, old)
    db.execute(sa.delete(counts).where(counts.c.number == 0))
    return len(old)


def _delete(db: sa.Connection, table: sa.Table, ids: list[Any]) -> None:
    if ids:
        db.execute(sa.delete(table).where(table.c.id.in_(IDS)), {"ids": ids})
