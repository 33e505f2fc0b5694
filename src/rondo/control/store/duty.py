"""Duties that one process at a time performs, such as sweeping: a row with a holder and an expiry."""

from __future__ import annotations

import sqlalchemy as sa

from rondo.control.store.clock import MICROSECONDS, Clock
from rondo.control.store.dialect import insert
from rondo.control.tables import duties


def claim(db: sa.Connection, clock: Clock, name: str, holder: str, seconds: float) -> bool:
    """Takes or renews the duty, unless another holder has it and has not expired."""
    now = clock.now(db)
    row = insert(db.dialect.name, duties).values(
        name=name, holder=holder, until=now + int(seconds * MICROSECONDS)
    )
    mine = row.on_conflict_do_update(
        index_elements=[duties.c.name],
        set_={"holder": row.excluded.holder, "until": row.excluded.until},
        where=sa.or_(duties.c.holder == holder, duties.c.until <= now),
    ).returning(duties.c.name)
    return db.execute(mine).first() is not None


def serialize(db: sa.Connection, name: str) -> None:
    """Until the end of this transaction, no other passes this call with the same name."""
    row = insert(db.dialect.name, duties).values(name=name, holder="", until=0)
    db.execute(row.on_conflict_do_update(index_elements=[duties.c.name], set_={"until": 0}))
