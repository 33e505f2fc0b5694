"""The durable queue. Each prompt is a row with a state:

    queued -> leased -> done
                 \\-> resting -> queued ...     the attempt failed or the worker vanished, and attempts are left
                 \\-> dead                      no attempt is left, or another would not help; the reason is stored
    any of these but done and dead -> cancelled

This class submits and inspects; `leases.py` serves workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound
from rondo.base.ids import new_id
from rondo.control.config import QueueConfig
from rondo.control.queue.fair import Turns
from rondo.control.queue.prune import prune
from rondo.control.queue.rows import (
    AT_A_TIME,
    CANCEL,
    GROUP,
    NEEDED,
    REQUEST,
    UNENDED,
    as_request,
    digest_of,
    group_of,
    group_of_key,
    insert_prompts,
)
from rondo.control.queue.tally import Tally, end_if_finished
from rondo.control.queue.work import Group, New, QueuedRequest, parted
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import QUEUED, counts, groups, requests

INLINE_CHARACTERS = 1 << 18
"""Larger submissions with an idempotency key are hashed in another thread, not on the event loop."""

_INSERT = sa.insert(groups).returning(groups.c.id)
_CANCELLED = (
    sa.select(requests.c.id, requests.c.group_id, requests.c.place, requests.c.model, requests.c.state)
    .limit(AT_A_TIME)
    .with_for_update()
)
_UNENDED = _CANCELLED.where(
    requests.c.state.in_(UNENDED),
    requests.c.group_id == sa.bindparam("of"),
    requests.c.place > sa.bindparam("after"),
).order_by(requests.c.place)
_WAITING = _CANCELLED.where(QUEUED).order_by(
    requests.c.base, requests.c.priority, requests.c.turn, requests.c.id
)
_OPEN = (
    sa.select(groups.c.name)
    .where(sa.not_(groups.c.sealed), groups.c.created <= sa.bindparam("before"), ~NEEDED)
    .limit(AT_A_TIME)
)
_DEAD = (
    sa.select(requests.c.id, requests.c.model, requests.c.base, requests.c.priority)
    .where(requests.c.state == "dead")
    .order_by(requests.c.place)
    .with_for_update()
)
_REVIVE = (
    sa.update(requests)
    .where(requests.c.id == sa.bindparam("wanted"))
    .values(
        state="queued",
        attempts=0,
        reason=None,
        worker=None,
        lease=None,
        cohort=None,
        turn=sa.bindparam("next"),
    )
)


class Queue:
    def __init__(self, store: Store, config: QueueConfig | None = None) -> None:
        self.store, self.config = store, config or QueueConfig()

    def put(
        self, prompts: Sequence[New], owner: str = "", *, key: str | None = None, sealed: bool = True
    ) -> Pending[Group]:
        """Stores a group. The same `key` of the same owner with the same prompts returns the group that exists. A
        group that is not sealed may be extended."""
        if key is not None and sum(len(each.body) for each in prompts) > INLINE_CHARACTERS:
            return self.store.background(
                lambda: self._put(prompts, owner, key, digest_of(prompts), sealed).result()
            )
        return self._put(prompts, owner, key, digest_of(prompts) if key is not None else "", sealed)

    def _put(
        self, prompts: Sequence[New], owner: str, key: str | None, digest: str, sealed: bool
    ) -> Pending[Group]:
        name, created, total = new_id("gen"), microseconds(), len(prompts)
        ended = created if sealed and not prompts else None

        def work(db: sa.Connection) -> Group:
            if key is not None and (there := group_of_key(db, owner, key)) is not None:
                group, known = there
                if known != digest:
                    raise Conflict(
                        f"the idempotency key {key!r} has been used for something else: repeat the request it was "
                        "used with, or use another key",
                        param="idempotency_key",
                    )
                return group
            values = {
                "name": name,
                "owner": owner,
                "idempotency_key": key,
                "digest": digest,
                "sealed": sealed,
                "total": total,
                "unfinished": total,
                "created": created,
                "ended": ended,
            }
            id = db.execute(_INSERT, values).scalar_one()
            insert_prompts(db, id, owner, 0, prompts)
            return Group(name, owner, total, total, sealed, created, ended)

        return self._announced(self.store.write(work), prompts)

    def extend(self, name: str, at: int, prompts: Sequence[New], *, seal: bool = False) -> Pending[Group]:
        """Adds prompts to a group. `at` is the caller's count of its requests: a retry after a lost answer fails with
        a `Conflict` that states the count, and adds nothing twice."""

        def work(db: sa.Connection) -> Group:
            id, group = group_of(db, name, lock=True)
            if group.sealed:
                raise Conflict(f"{name} is complete, with {group.total} requests: nothing can be added")
            if group.total != at:
                raise Conflict(f"{name} has {group.total} requests, not {at}: go on from there", param="at")
            insert_prompts(db, id, group.owner, at, prompts)
            db.execute(
                sa.update(groups).where(groups.c.id == id),
                {
                    "total": group.total + len(prompts),
                    "unfinished": group.unfinished + len(prompts),
                    "sealed": seal,
                },
            )
            end_if_finished(db, id)
            return group_of(db, name)[1]

        return self._announced(self.store.write(work), prompts)

    def cancel(self, name: str) -> Pending[Group]:
        """Cancels requests that have not ended. Their workers are notified at the next heartbeat; late results are
        refused."""

        def work(db: sa.Connection, after: int) -> tuple[int | None, Group]:
            id, _ = group_of(db, name, lock=True)
            db.execute(sa.update(groups).where(groups.c.id == id).values(sealed=True))
            rows = db.execute(_UNENDED, {"of": id, "after": after}).all()
            _cancel(db, rows)
            end_if_finished(db, id)
            return rows[-1].place if rows else None, group_of(db, name)[1]

        def all_of_them() -> Group:
            after: int | None = -1
            while after is not None:
                after, group = self.store.write(partial(work, after=after)).result()
            return group

        return self.store.background(all_of_them)

    def clear(self, owner: str | None = None) -> Pending[int]:
        """Cancels each waiting request of the owner, or of each owner. The number of them."""
        waiting = _WAITING if owner is None else _WAITING.where(requests.c.owner == owner)

        def work(db: sa.Connection) -> int:
            rows = db.execute(waiting).all()
            _cancel(db, rows)
            return len(rows)

        def all_of_them() -> int:
            total = 0
            while number := self.store.write(work).result():
                total += number
            return total

        return self.store.background(all_of_them)

    def revive(self, name: str, place: int | None = None) -> Pending[int]:
        """Returns the dead letters of a group, or the one at `place`, to the end of its owner's queue, without
        attempts. The number of them."""
        bases = set[str]()

        def work(db: sa.Connection) -> int:
            id, group = group_of(db, name, lock=True)
            dead = _DEAD.where(requests.c.group_id == id)
            rows = db.execute(dead if place is None else dead.where(requests.c.place == place)).all()
            if not rows:
                return 0
            turns = Turns(db, group.owner)
            db.execute(
                _REVIVE, [{"wanted": row.id, "next": turns.next((row.base, row.priority))} for row in rows]
            )
            db.execute(
                sa.update(groups).where(groups.c.id == id),
                {"unfinished": group.unfinished + len(rows), "ended": None},
            )
            tally = Tally()
            for model, number in Counter(row.model for row in rows).items():
                tally.moved(model, "dead", "queued", number)
            tally.write(db)
            bases.update(row.base for row in rows)
            return len(rows)

        revived = self.store.write(work)
        revived.add_done_callback(lambda done: self.store.signals.notify(bases))
        return revived

    def prune(self) -> Pending[int]:
        """Deletes groups that ended more than `keep` seconds ago, with bodies and results. The number of groups. Groups
        of that age that were never sealed, because their client vanished, are cancelled first."""

        def all_of_them() -> int:
            before = microseconds() - int(self.config.keep * MICROSECONDS)
            for name in self.store.read(lambda db: db.scalars(_OPEN, {"before": before}).all()).result():
                self.cancel(name).result()
            return prune(self.store, self.config.keep).result()

        return self.store.background(all_of_them)

    def group(self, name: str) -> Pending[Group]:
        return self.store.read(lambda db: group_of(db, name)[1])

    def groups(
        self, owner: str | None = None, before: int | None = None, limit: int = 50
    ) -> Pending[list[Group]]:
        """The newest first; only groups created before the timestamp `before`."""
        wanted = sa.select(*GROUP).order_by(groups.c.id.desc()).limit(limit)
        if owner is not None:
            wanted = wanted.where(groups.c.owner == owner)
        if before is not None:
            wanted = wanted.where(groups.c.created < before)
        return self.store.read(lambda db: [Group(*row) for row in db.execute(wanted)])

    def requests(self, name: str, after: int = -1, limit: int = 1000) -> Pending[list[QueuedRequest]]:
        """Requests of a group in order, from the place after `after` on."""

        def work(db: sa.Connection) -> list[QueuedRequest]:
            id, _ = group_of(db, name)
            wanted = REQUEST.where(requests.c.group_id == id, requests.c.place > after)
            return [as_request(row) for row in db.execute(wanted.order_by(requests.c.place).limit(limit))]

        return self.store.read(work)

    def request(self, id: str) -> Pending[QueuedRequest]:
        name, place = parted(id) or ("", 0)
        wanted = REQUEST.where(groups.c.name == name, requests.c.place == place)

        def work(db: sa.Connection) -> QueuedRequest:
            row = db.execute(wanted).first()
            if row is None:
                raise NotFound(f"there is no request {id!r}", param="request_id")
            return as_request(row)

        return self.store.read(work)

    def counts(self, owner: str | None = None) -> Pending[dict[tuple[str, str], int]]:
        """Number of requests by model and state, of the owner or of all."""
        number = sa.func.sum(counts.c.number)
        wanted = (
            sa.select(counts.c.model, counts.c.state, number)
            .group_by(counts.c.model, counts.c.state)
            .having(number > 0)
        )
        if owner is not None:
            key = requests.c.model, requests.c.state
            joined = sa.select(*key, sa.func.count()).join_from(groups, requests)
            wanted = joined.where(groups.c.owner == owner).group_by(*key)
        return self.store.read(
            lambda db: {(model, state): int(total) for model, state, total in db.execute(wanted)}
        )

    def _announced(self, stored: Pending[Group], prompts: Sequence[New]) -> Pending[Group]:
        """Wakes waiting workers after the commit."""
        bases = {each.lane[0] for each in prompts}
        stored.add_done_callback(lambda done: self.store.signals.notify(bases))
        return stored


def _cancel(db: sa.Connection, rows: Sequence[Any]) -> None:
    if rows:
        db.execute(CANCEL, {"ids": [row.id for row in rows]})
        tally = Tally()
        tally.cancelled(rows)
        tally.write(db)
