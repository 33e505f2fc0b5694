"""Leases of workers. A worker finishes a prompt under the lease it got it with, so each prompt ends once, however late
a worker is."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import sqlalchemy as sa

from rondo.control.config import QueueConfig
from rondo.control.queue.fair import HEAD_OF_LANE, in_order
from rondo.control.queue.finish import FailedAttempt, fail, finish
from rondo.control.queue.rows import AT_A_TIME, IDS, held
from rondo.control.queue.tally import Tally
from rondo.control.queue.work import Finished, Leased, Swept, Verdict, parted, request_id, signal_of
from rondo.control.store.clock import MICROSECONDS, Clock
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import QUEUED, bodies, groups, requests

LEASED_AT_MOST = 1000
"""Maximum number of prompts per call."""
LONGEST_LEASE = 1800.0
"""Seconds of a lease of a worker that sends no heartbeats."""
LEASED_SIZE = 64 << 20
"""Characters of their bodies, above which a call leases no further prompt."""

_WAITING = (
    sa.select(requests.c.id, requests.c.base, requests.c.priority, requests.c.turn)
    .where(QUEUED, requests.c.base == sa.bindparam("wanted"), requests.c.cohort.is_(None))
    .order_by(requests.c.priority, requests.c.turn, requests.c.id)
    .limit(sa.bindparam("number"))
)
_SUSPECTS = (
    sa.select(requests.c.id, requests.c.priority, requests.c.cohort)
    .where(
        QUEUED, requests.c.cohort.is_not(None), requests.c.base.in_(sa.bindparam("wanted", expanding=True))
    )
    .order_by(requests.c.priority, requests.c.cohort.desc(), requests.c.turn, requests.c.id)
    .limit(sa.bindparam("number"))
)
"""Large cohorts first: their innocent requests wait the shortest time."""
_NEXT, _NEXT_SUSPECTS = (each.with_for_update(skip_locked=True) for each in (_WAITING, _SUSPECTS))
_SIZES = sa.select(bodies.c.id, sa.func.length(bodies.c.body)).where(bodies.c.id.in_(IDS))
_LEASE = (
    sa.update(requests).where(requests.c.id.in_(IDS)).values(state="leased", attempts=requests.c.attempts + 1)
)
_LEASED = (
    sa.select(
        requests.c.id,
        groups.c.name,
        requests.c.place,
        requests.c.model,
        bodies.c.body,
        requests.c.attempts,
        requests.c.cohort,
    )
    .join_from(requests, groups, groups.c.id == requests.c.group_id)
    .join(bodies, bodies.c.id == requests.c.id)
    .where(requests.c.id.in_(IDS))
)
_EXTEND = sa.update(requests).where(requests.c.id.in_(IDS))
_RENEW = sa.update(requests).where(requests.c.until.is_not(None))
_DUE = (
    sa.select(
        requests.c.id,
        requests.c.group_id,
        requests.c.model,
        requests.c.base,
        requests.c.state,
        requests.c.attempts,
        requests.c.cohort,
        requests.c.worker,
    )
    .where(requests.c.until <= sa.bindparam("now"))
    .order_by(requests.c.until)
    .limit(AT_A_TIME)
    .with_for_update(skip_locked=True)
)
_OF_VANISHED = _DUE.where(
    requests.c.state == "leased", requests.c.worker.in_(sa.bindparam("workers", expanding=True))
)
_RETURN = (
    sa.update(requests).where(requests.c.id.in_(IDS)).values(state="queued", until=None, turn=HEAD_OF_LANE)
)


_RELEASE = (
    sa.update(requests)
    .where(requests.c.id.in_(IDS))
    .values(state="queued", until=None, attempts=requests.c.attempts - 1, turn=HEAD_OF_LANE)
)
_OF_WORKER = (
    sa.select(requests.c.id, requests.c.model, requests.c.base, requests.c.state)
    .where(requests.c.until.is_not(None), requests.c.worker == sa.bindparam("of"))
    .with_for_update()
)


class Leases:
    def __init__(self, store: Store, config: QueueConfig | None = None, clock: Clock | None = None) -> None:
        self.store, self.config, self.clock = store, config or QueueConfig(), clock or store.clock

    def renew(self) -> Pending[None]:
        """Extends each lease to its full time, at the start of a gateway: workers could not renew while it was down.
        Leases and rest periods are cut to the maximum."""

        def work(db: sa.Connection) -> None:
            now = self.clock.now(db)
            rested = now + _micro(self.config.longest_rest)
            least = now + _micro(self.config.lease)
            most = now + _micro(max(self.config.lease, LONGEST_LEASE))
            until = requests.c.until
            bounded = sa.case((until < least, least), (until > most, most), else_=until)
            db.execute(_RENEW.where(requests.c.state == "leased").values(until=bounded))
            db.execute(
                _RENEW.where(requests.c.state == "resting", requests.c.until > rested).values(until=rested)
            )

        return self.store.write(work)

    def take(
        self,
        worker: str,
        bases: Iterable[str],
        limit: int,
        lease_seconds: float | None = None,
        held: int = 0,
    ) -> Pending[list[Leased]]:
        """At most `limit` prompts of these base models, and at most `LEASED_SIZE` or a single one: the lowest priority
        number first, then by fair share. Suspects of a crash are leased apart from other prompts, to a worker that has
        none (`held`). The lease lasts `lease_seconds`, by default the setting."""
        names, number = list(dict.fromkeys(bases)), min(limit, LEASED_AT_MOST)
        lease = secrets.token_hex(8)
        seconds = self.config.lease if lease_seconds is None else lease_seconds

        def work(db: sa.Connection) -> list[Leased]:
            rows = [row for name in names for row in db.execute(_NEXT, {"wanted": name, "number": number})]
            suspects = [] if held else db.execute(_NEXT_SUSPECTS, {"wanted": names, "number": number}).all()
            first = suspects and all(suspects[0].priority <= row.priority for row in rows)
            ids = _within_size(db, _cohort(suspects) if first else in_order(rows, number))
            if not ids:
                return []
            until = self.clock.now(db) + _micro(seconds)
            db.execute(_LEASE, {"ids": ids, "worker": worker, "lease": lease, "until": until})
            found = {row.id: row for row in db.execute(_LEASED, {"ids": ids})}
            tally = Tally()
            for row in found.values():
                tally.moved(row.model, "queued", "leased")
            tally.write(db)
            return [_leased(found[id], lease) for id in ids]

        return self.store.write(work)

    async def poll(
        self,
        worker: str,
        bases: Iterable[str],
        limit: int,
        seconds: float,
        lease_seconds: float | None = None,
    ) -> list[Leased]:
        """`take` that waits up to `seconds` for the first prompt (long polling)."""
        names = list(dict.fromkeys(bases))

        async def look() -> list[Leased] | None:
            return await self.take(worker, names, limit, lease_seconds) or None

        return await self.store.signals.poll(names, seconds, look) or []

    def suspects(self, bases: Iterable[str]) -> Pending[bool]:
        """Whether suspects of a crash are the most urgent waiting prompts of these base models."""
        names = list(dict.fromkeys(bases))

        def work(db: sa.Connection) -> bool:
            first = db.execute(_SUSPECTS, {"wanted": names, "number": 1}).first()
            if first is None:
                return False
            others = [db.execute(_WAITING, {"wanted": name, "number": 1}).first() for name in names]
            return all(row is None or first.priority <= row.priority for row in others)

        return self.store.read(work)

    def held(self, ids: Sequence[str]) -> Pending[dict[str, tuple[str, str]]]:
        """Latest lease and body of each request that was leased; unknown ids are left out."""

        def work(db: sa.Connection) -> dict[str, tuple[str, str]]:
            rows = {id: row for id, row in held(db, ids).items() if row.lease is not None}
            wanted = sa.select(bodies.c.id, bodies.c.body).where(bodies.c.id.in_(IDS))
            texts = dict(db.execute(wanted, {"ids": [row.id for row in rows.values()]}).all()) if rows else {}
            return {id: (row.lease, texts[row.id]) for id, row in rows.items()}

        return self.store.write(work)

    def beat(self, working: Sequence[tuple[str, str]]) -> Pending[list[str]]:
        """A worker's heartbeat for these (id, lease). Ids that it no longer holds: it should drop them."""

        def work(db: sa.Connection) -> list[str]:
            rows = held(db, [id for id, _ in working])
            own = {
                id: rows[id].id
                for id, lease in working
                if id in rows and rows[id].state == "leased" and rows[id].lease == lease
            }
            if own:
                until = self.clock.now(db) + _micro(self.config.lease)
                db.execute(_EXTEND, {"ids": list(own.values()), "until": until})
            return [id for id, _ in working if id not in own]

        return self.store.write(work)

    def finish(self, finished: Sequence[Finished]) -> Pending[list[Verdict]]:
        """Stores results and failures. A repetition gets the same verdict; a result after the lease expired counts
        unless another worker has the prompt."""
        bases = set[str]()
        ended = self.store.write(lambda db: finish(db, finished, self.clock.now(db), self.config, bases))
        names = {both[0] for each in finished if (both := parted(each.id)) is not None}
        ended.add_done_callback(lambda done: self.store.signals.notify([*map(signal_of, names), *bases]))
        return ended

    def release(self, working: Sequence[tuple[str, str]]) -> Pending[int]:
        """Returns these (id, lease) to the queue, ahead of it and without counting the attempt: their worker never
        sent them to an engine, or ends. The number of them."""

        def find(db: sa.Connection) -> list[Any]:
            rows = held(db, [id for id, _ in working])
            return [row for id, lease in working if (row := rows.get(id)) is not None and row.lease == lease]

        return self._release(find)

    def release_all(self, worker: str) -> Pending[int]:
        """`release` of everything that a worker holds."""
        return self._release(lambda db: db.execute(_OF_WORKER, {"of": worker}).all())

    def _release(self, find: Callable[[sa.Connection], Sequence[Any]]) -> Pending[int]:
        bases = set[str]()

        def work(db: sa.Connection) -> int:
            rows = [row for row in find(db) if row.state == "leased"]
            if rows:
                db.execute(_RELEASE, {"ids": [row.id for row in rows]})
            tally = Tally()
            for row in rows:
                tally.moved(row.model, "leased", "queued")
            tally.write(db)
            bases.update(row.base for row in rows)
            return len(rows)

        released = self.store.write(work)
        released.add_done_callback(lambda done: self.store.signals.notify(bases))
        return released

    def sweep(self) -> Pending[Swept]:
        """Ends expired leases and rests. Call it regularly, from one process (`maintain.py`)."""
        bases = set[str]()

        def all_of_them() -> Swept:
            total = Swept()
            while True:
                swept, more = self.store.write(lambda db: self._sweep(db, bases)).result()
                total = Swept(
                    total.expired + swept.expired, total.dead + swept.dead, total.rested + swept.rested
                )
                if not more:
                    self.store.signals.notify(bases)
                    return total

        return self.store.background(all_of_them)

    def _sweep(self, db: sa.Connection, bases: set[str]) -> tuple[Swept, bool]:
        now = self.clock.now(db)
        due = db.execute(_DUE, {"now": now}).all()
        tally = Tally()
        verdicts = Counter(fail(db, self._expired(db, due, now), now, self.config, tally, bases))
        rested = [row for row in due if row.state == "resting"]
        if rested:
            db.execute(_RETURN, {"ids": [row.id for row in rested]})
        for row in rested:
            tally.moved(row.model, "resting", "queued")
        tally.write(db)
        bases.update(row.base for row in rested)
        return Swept(verdicts["resting"], verdicts["dead"], len(rested)), len(due) == AT_A_TIME

    def _expired(self, db: sa.Connection, due: Sequence[Any], now: int) -> list[FailedAttempt]:
        """Failures of expired leases. All requests of a vanished worker expire together, including those leased after
        its last heartbeat, since their number decides whether an attempt is counted."""
        rows = {row.id: row for row in due if row.state == "leased"}
        if not rows:
            return []
        workers = {row.worker for row in rows.values()}
        soon = now + _micro(self.config.lease / 2)  # a worker sends heartbeats twice as often
        rows |= {row.id: row for row in db.execute(_OF_VANISHED, {"now": soon, "workers": list(workers)})}
        numbers = Counter(row.worker for row in rows.values())
        return [
            FailedAttempt(row, _vanished(row.worker, self.config), True, numbers[row.worker])
            for row in rows.values()
        ]


def _cohort(suspects: Sequence[Any]) -> list[int]:
    """Ids of the first suspects that may run together."""
    least = accumulate((row.cohort for row in suspects), min)
    return [row.id for number, (row, most) in enumerate(zip(suspects, least), 1) if number <= most]


def _within_size(db: sa.Connection, ids: list[int]) -> list[int]:
    if len(ids) < 2:
        return ids
    sizes = dict(db.execute(_SIZES, {"ids": ids}).all())
    sums = accumulate(sizes[id] for id in ids)
    return [id for place, (id, size) in enumerate(zip(ids, sums)) if not place or size <= LEASED_SIZE]


def _leased(row: Any, lease: str) -> Leased:
    id = request_id(row.name, row.place)
    return Leased(id, lease, row.model, row.body, row.attempts, row.cohort is not None)


def _vanished(worker: str, config: QueueConfig) -> str:
    return f"its worker ({worker}) sent no heartbeat for {config.lease:g} s"


def _micro(seconds: float) -> int:
    return int(seconds * MICROSECONDS)
