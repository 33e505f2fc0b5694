"""Consistency of the tables: counters against the rows that they count, and payloads against requests."""

from __future__ import annotations

import sqlalchemy as sa

from rondo.control.tables import bodies, counts, groups, requests, results

UNENDED = ("queued", "leased", "resting")

_TRUE = sa.select(requests.c.model, requests.c.state, sa.func.count()).group_by(
    requests.c.model, requests.c.state
)
_COUNTED = sa.select(counts.c.model, counts.c.state, sa.func.sum(counts.c.number)).group_by(
    counts.c.model, counts.c.state
)
_total = sa.func.count(requests.c.id)
_unfinished = sa.func.count(sa.case((requests.c.state.in_(UNENDED), 1)))
_GROUPS = (
    sa.select(groups.c.name)
    .outerjoin_from(groups, requests, requests.c.group_id == groups.c.id)
    .group_by(groups.c.id)
    .having(sa.or_(groups.c.total != _total, groups.c.unfinished != _unfinished))
    .limit(5)
)
_NO_BODY = (
    sa.select(sa.func.count())
    .select_from(requests)
    .outerjoin(bodies, bodies.c.id == requests.c.id)
    .where(bodies.c.id.is_(None))
)


def problems(db: sa.Connection) -> list[str]:
    found = []
    true = {(model, state): number for model, state, number in db.execute(_TRUE)}
    counted = {(model, state): int(number) for model, state, number in db.execute(_COUNTED) if number}
    for model, state in sorted(true.keys() | counted.keys()):
        have, want = counted.get((model, state), 0), true.get((model, state), 0)
        if have != want:
            found.append(f"the counter of {state} requests of {model} is {have}, and there are {want}")
    names = list(db.execute(_GROUPS).scalars())
    if names:
        found.append(f"the totals of groups differ from their requests: {', '.join(names)}")
    if missing := db.execute(_NO_BODY).scalar_one():
        found.append(f"{missing} requests have no body")
    for table in (bodies, results):
        orphans = (
            sa.select(sa.func.count()).select_from(table).outerjoin(requests, requests.c.id == table.c.id)
        )
        if number := db.execute(orphans.where(requests.c.id.is_(None))).scalar_one():
            found.append(f"{number} rows of {table.name} belong to no request")
    return found
