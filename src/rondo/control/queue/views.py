"""Read-only views of the queue: results without bodies, dead letters, and sums by model, owner and priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import NotFound
from rondo.control.queue.rows import group_of
from rondo.control.queue.work import State, parted, request_id
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import QUEUED, groups, requests, results

ENDED: tuple[State, ...] = ("done", "dead", "cancelled")
DEAD = requests.c.state == sa.literal_column("'dead'")

_ROW = (
    groups.c.name,
    requests.c.place,
    requests.c.model,
    requests.c.state,
    requests.c.attempts,
    requests.c.worker,
    requests.c.reason,
)


@dataclass(frozen=True)
class QueuedRow:
    """A request without its body. `result` is None before its end and where it was not read."""

    id: str
    place: int
    model: str
    state: State
    attempts: int
    worker: str | None
    reason: str | None
    result: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class Lot:
    """Number of requests that wait, or that workers hold, with the same base model, owner and priority."""

    base: str
    owner: str
    priority: int
    state: State
    number: int


def rows_from(store: Store, name: str, after: int, limit: int) -> Pending[list[QueuedRow]]:
    """Requests of a group with their results, in order, from the place after `after` on."""
    wanted = _with_results().where(requests.c.place > after).order_by(requests.c.place).limit(limit)
    return _of_group(store, name, wanted)


def rows_at(store: Store, name: str, places: Sequence[int]) -> Pending[list[QueuedRow]]:
    """Ended requests of a group at these places, with their results."""
    wanted = _with_results().where(requests.c.place.in_(places), requests.c.state.in_(ENDED))
    return _of_group(store, name, wanted.order_by(requests.c.place))


def ended_at(store: Store, name: str, places: Sequence[int]) -> Pending[int]:
    """Number of requests of a group at these places that have ended."""
    wanted = sa.select(sa.func.count()).select_from(requests)
    wanted = wanted.where(requests.c.place.in_(places), requests.c.state.in_(ENDED))

    def work(db: sa.Connection) -> int:
        id, _ = group_of(db, name)
        return db.scalar(wanted.where(requests.c.group_id == id)) or 0

    return store.read(work)


def row_of(store: Store, id: str) -> Pending[QueuedRow]:
    name, place = parted(id) or ("", 0)

    def work(db: sa.Connection) -> QueuedRow:
        row = db.execute(_with_results().where(groups.c.name == name, requests.c.place == place)).first()
        if row is None:
            raise NotFound(f"there is no request {id!r}", param="request_id")
        return _as_row(row)

    return store.read(work)


def dead_letters(store: Store, owner: str | None, before: str | None, limit: int) -> Pending[list[QueuedRow]]:
    """The newest first; `before` is the last id of the previous page."""
    name, place = parted(before or "") or ("", 0)

    def work(db: sa.Connection) -> list[QueuedRow]:
        wanted = sa.select(*_ROW).join_from(requests, groups).where(DEAD).order_by(requests.c.id.desc())
        if owner is not None:
            wanted = wanted.where(requests.c.owner == owner)
        if before is not None:
            of = sa.select(requests.c.id).join_from(requests, groups)
            edge = db.scalar(of.where(groups.c.name == name, requests.c.place == place))
            wanted = wanted.where(requests.c.id < (0 if edge is None else edge))
        return [_as_row(row) for row in db.execute(wanted.limit(limit))]

    return store.read(work)


def lots(store: Store, owner: str | None = None) -> Pending[list[Lot]]:
    """Waiting and leased requests by base model, owner and priority."""
    key = (requests.c.base, requests.c.owner, requests.c.priority, requests.c.state)
    waiting, due = QUEUED, requests.c.until.is_not(None)

    def work(db: sa.Connection) -> list[Lot]:
        found = []
        for condition in (waiting, due):
            wanted = sa.select(*key, sa.func.count()).where(condition).group_by(*key).order_by(*key)
            if owner is not None:
                wanted = wanted.where(requests.c.owner == owner)
            found += [Lot(*row) for row in db.execute(wanted)]
        return found

    return store.read(work)


def waiting_bases(store: Store) -> Pending[list[str]]:
    """Base models of waiting requests: one look into the index for each."""
    column = requests.c.base

    def work(db: sa.Connection) -> list[str]:
        found: list[str] = []
        wanted = sa.select(column).where(QUEUED).order_by(column).limit(1)
        base = db.scalar(wanted)
        while base is not None:
            found.append(base)
            base = db.scalar(wanted.where(column > base))
        return found

    return store.read(work)


def _with_results() -> sa.Select[Any]:
    joined = sa.select(*_ROW, results.c.result).join_from(requests, groups)
    return joined.outerjoin(results, results.c.id == requests.c.id)


def _of_group(store: Store, name: str, wanted: sa.Select[Any]) -> Pending[list[QueuedRow]]:
    def work(db: sa.Connection) -> list[QueuedRow]:
        id, _ = group_of(db, name)
        return [_as_row(row) for row in db.execute(wanted.where(requests.c.group_id == id))]

    return store.read(work)


def _as_row(row: Sequence[Any]) -> QueuedRow:
    name, place, *rest = row
    return QueuedRow(request_id(name, place), place, *rest)
