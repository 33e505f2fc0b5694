"""Statements of the queue, within a transaction of the caller."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import NotFound
from rondo.control.queue.fair import turns
from rondo.control.queue.tally import Tally
from rondo.control.queue.work import Group, New, QueuedRequest, parted, request_id
from rondo.control.tables import batches, bodies, eval_runs, groups, requests, responses, results

AT_A_TIME = 5000
"""Rows that one transaction changes, where there may be very many."""
UNENDED = ("queued", "leased", "resting")

GROUP = (
    groups.c.name,
    groups.c.owner,
    groups.c.total,
    groups.c.unfinished,
    groups.c.sealed,
    groups.c.created,
    groups.c.ended,
)
REQUEST = (
    sa.select(
        groups.c.name,
        requests.c.place,
        requests.c.model,
        requests.c.state,
        bodies.c.body,
        requests.c.attempts,
        requests.c.worker,
        results.c.result,
        requests.c.reason,
    )
    .join_from(requests, groups, groups.c.id == requests.c.group_id)
    .join(bodies, bodies.c.id == requests.c.id)
    .outerjoin(results, results.c.id == requests.c.id)
)
IDS: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
CANCEL = sa.update(requests).where(requests.c.id.in_(IDS)).values(state="cancelled", until=None)

NEEDED = sa.or_(
    sa.exists().where(batches.c.queued_as == groups.c.name, batches.c.ended.is_(None)),
    sa.exists().where(responses.c.queued_as == groups.c.name),
    sa.exists().where(eval_runs.c.queued_as == groups.c.name, eval_runs.c.ended.is_(None)),
)
"""Groups whose results a batch, a response in the background or an eval run has not stored yet: they are not pruned."""

_INSERT_BODIES = sa.insert(bodies)
_INSERT = sa.insert(requests).returning(requests.c.id, requests.c.place)
_OF_GROUP = sa.select(groups.c.id, *GROUP).where(groups.c.name == sa.bindparam("wanted"))
_OF_KEY = sa.select(groups.c.digest, *GROUP).where(
    groups.c.owner == sa.bindparam("wanted"), groups.c.idempotency_key == sa.bindparam("key")
)
_GROUPS = sa.select(groups.c.name, groups.c.id).where(
    groups.c.name.in_(sa.bindparam("names", expanding=True))
)
_HELD = (
    sa.select(
        requests.c.id,
        requests.c.group_id,
        requests.c.place,
        requests.c.owner,
        requests.c.model,
        requests.c.base,
        requests.c.state,
        requests.c.lease,
        requests.c.attempts,
        requests.c.cohort,
    )
    .where(
        requests.c.group_id.in_(sa.bindparam("groups", expanding=True)),
        requests.c.place.in_(sa.bindparam("places", expanding=True)),
    )
    .with_for_update()
)


def digest_of(prompts: Sequence[New]) -> str:
    digest = hashlib.sha256()
    for each in prompts:
        for part in (each.model, each.base or each.model, str(each.priority), each.body):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def insert_prompts(db: sa.Connection, group: int, owner: str, at: int, prompts: Sequence[New]) -> None:
    if not prompts:
        return
    rows = [
        {
            "group_id": group,
            "place": place,
            "owner": owner,
            "model": each.model,
            "base": each.lane[0],
            "priority": each.priority,
            "turn": turn,
            "state": "queued",
            "attempts": 0,
        }
        for place, (each, turn) in enumerate(zip(prompts, turns(db, owner, prompts)), at)
    ]
    inserted = db.execute(_INSERT, rows).all()
    db.execute(_INSERT_BODIES, [{"id": id, "body": prompts[place - at].body} for id, place in inserted])
    tally = Tally()
    for model, number in Counter(each.model for each in prompts).items():
        tally.moved(model, None, "queued", number)
    tally.write(db)


def held(db: sa.Connection, ids: Iterable[str]) -> dict[str, Any]:
    """State rows by request id, locked; unknown ids are left out."""
    parts = {id: both for id in ids if (both := parted(id)) is not None}
    if not parts:
        return {}
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for name, place in parts.values():
        wanted[name].append(place)
    names = {row.id: row.name for row in db.execute(_GROUPS, {"names": list(wanted)})}
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    """Groups by their places: SQLite scans the table for `(group_id, place) IN (...)`."""
    for id, name in names.items():
        alike[tuple(wanted[name])].append(id)
    rows: dict[tuple[str, int], Any] = {
        (names[row.group_id], row.place): row
        for places, ids_of_groups in alike.items()
        for row in db.execute(_HELD, {"groups": ids_of_groups, "places": places})
    }
    return {id: rows[both] for id, both in parts.items() if both in rows}


def group_of(db: sa.Connection, name: str, *, lock: bool = False) -> tuple[int, Group]:
    row = db.execute(_OF_GROUP.with_for_update() if lock else _OF_GROUP, {"wanted": name}).first()
    if row is None:
        raise NotFound(f"there is no group {name!r}", param="request_id")
    return row[0], Group(*row[1:])


def group_of_key(db: sa.Connection, owner: str, key: str) -> tuple[Group, str] | None:
    row = db.execute(_OF_KEY, {"wanted": owner, "key": key}).first()
    return None if row is None else (Group(*row[1:]), row[0])


def as_request(row: Sequence[Any]) -> QueuedRequest:
    name, place, *rest = row
    return QueuedRequest(request_id(name, place), *rest)
