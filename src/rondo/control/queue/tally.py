"""Counters that a transaction changes: requests by model and state, unfinished requests by group, usage by owner."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import sqlalchemy as sa

from rondo.control.store.clock import microseconds
from rondo.control.store.dialect import insert
from rondo.control.tables import counts, groups
from rondo.control.usage import add_usage, today

SLOTS = {"sqlite": 1, "postgresql": 16}
"""Rows per counter. Concurrent transactions on PostgreSQL add to different rows, and so do not wait for each other."""

_END = (
    sa.update(groups)
    .where(groups.c.id == sa.bindparam("group"))
    .values(
        unfinished=groups.c.unfinished - sa.bindparam("number"),
        ended=sa.case(
            (
                sa.and_(
                    groups.c.sealed,
                    groups.c.ended.is_(None),
                    groups.c.unfinished == sa.bindparam("number"),
                ),
                sa.bindparam("now"),
            ),
            else_=groups.c.ended,
        ),
    )
)


class Tally:
    def __init__(self) -> None:
        self.states: Counter[tuple[str, str]] = Counter()
        self.ended: Counter[int] = Counter()
        """By id of the group."""
        self.used: dict[tuple[str, str, str], list[int]] = {}
        """Requests, input tokens and output tokens by owner, day and model."""

    def moved(self, model: str, before: str | None, after: str | None, number: int = 1) -> None:
        if before is not None:
            self.states[model, before] -= number
        if after is not None:
            self.states[model, after] += number

    def answered(self, row: Any, input_tokens: int, output_tokens: int) -> None:
        self.moved(row.model, row.state, "done")
        self.ended[row.group_id] += 1
        sums = self.used.setdefault((row.owner, today(), row.model), [0, 0, 0])
        for place, number in enumerate((1, input_tokens, output_tokens)):
            sums[place] += number

    def cancelled(self, rows: Iterable[Any]) -> None:
        for row in rows:
            self.moved(row.model, row.state, "cancelled")
            self.ended[row.group_id] += 1

    def write(self, db: sa.Connection) -> None:
        """In the order of keys, so that concurrent transactions do not lock each other out."""
        dialect = db.dialect.name
        slot = random.randrange(SLOTS[dialect])
        changes = [
            {"model": model, "state": state, "slot": slot, "number": number}
            for (model, state), number in sorted(self.states.items())
            if number
        ]
        if changes:
            db.execute(_add(dialect), changes)
        if self.ended:
            now = microseconds()
            db.execute(
                _END,
                [{"group": id, "number": number, "now": now} for id, number in sorted(self.ended.items())],
            )
        if self.used:
            add_usage(db, self.used)


@cache
def _add(dialect: str) -> sa.Executable:
    statement = insert(dialect, counts)
    return statement.on_conflict_do_update(
        index_elements=[counts.c.model, counts.c.state, counts.c.slot],
        set_={"number": counts.c.number + statement.excluded.number},
    )


def end_if_finished(db: sa.Connection, group: int) -> None:
    """A group that is sealed without an unfinished request has ended."""
    db.execute(_END, {"group": group, "number": 0, "now": microseconds()})
