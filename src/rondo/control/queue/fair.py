"""Fair sharing between owners: start-time fair queueing over a column of the waiting rows.

A lane is one base model at one priority. A waiting prompt has a turn, and workers lease the lowest turn first. An
owner's next prompt gets the turn after that owner's last waiting one, but never a turn before the lane's head, which is
the lowest waiting turn. An owner with 100,000 waiting prompts therefore occupies turns h .. h + 99,999; a second owner
that arrives with 100 prompts gets turns h .. h + 99, and the two alternate until the second has none left. An idle
owner saves up no credit, and an owner pays for nothing that it cancelled, since turns derive from waiting rows alone.

Both lookups are the end of an index range, and leasing reads the index in order: the cost of a lease does not depend
on the number of rows or owners. Concurrent submissions of one owner on PostgreSQL may get the same turns, which makes
that owner's share larger for these prompts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from rondo.control.queue.work import New
from rondo.control.tables import QUEUED, requests

Lane = tuple[str, int]

_columns, _other = requests.c, requests.alias("other").c
ONE: sa.ColumnElement[int] = sa.literal_column("1")
_in_lane = (QUEUED, _columns.base == sa.bindparam("base"), _columns.priority == sa.bindparam("priority"))
# PostgreSQL without statistics reads a whole lane for min() and max(), but one entry of the index for these:
_head = sa.select(_columns.turn).where(*_in_lane).order_by(_columns.turn).limit(ONE).scalar_subquery()
_last = (
    sa.select(_columns.turn)
    .where(*_in_lane, _columns.owner == sa.bindparam("owner"))
    .order_by(_columns.turn.desc())
    .limit(ONE)
    .scalar_subquery()
)
_NEXT = sa.select(sa.func.coalesce(_head, 0), sa.func.coalesce(_last + 1, 0))

HEAD_OF_LANE = sa.func.coalesce(
    sa.select(_other.turn)
    .where(
        _other.state == sa.literal_column("'queued'"),
        _other.base == _columns.base,
        _other.priority == _columns.priority,
    )
    .order_by(_other.turn)
    .limit(ONE)
    .scalar_subquery(),
    0,
)
"""Within an UPDATE of `requests`: the turn of a prompt that returns to the queue after a failure. It goes first, as its
owner has paid for it; a turn before the head would give later arrivals a head start."""


class Turns:
    """Turns of prompts that enter the queue within one transaction."""

    def __init__(self, db: sa.Connection, owner: str) -> None:
        self._db, self._owner = db, owner
        self._next: dict[Lane, int] = {}

    def next(self, lane: Lane) -> int:
        turn = self._next.get(lane)
        if turn is None:
            values = {"base": lane[0], "priority": lane[1], "owner": self._owner}
            head, after_last = self._db.execute(_NEXT, values).one()
            turn = max(head, after_last)
        self._next[lane] = turn + 1
        return turn


def turns(db: sa.Connection, owner: str, prompts: Iterable[New]) -> list[int]:
    given = Turns(db, owner)
    return [given.next(prompt.lane) for prompt in prompts]


def in_order(rows: Sequence[Any], limit: int) -> list[int]:
    """Ids of (id, base, priority, turn), the most urgent first. Lanes at one priority alternate: turns of different
    lanes are compared by their distance from the head of the lane."""
    heads: dict[Lane, int] = {}
    for _, base, priority, turn in rows:
        heads.setdefault((base, priority), turn)
    ordered = sorted((priority, turn - heads[base, priority], id) for id, base, priority, turn in rows)
    return [id for _, _, id in ordered[:limit]]
