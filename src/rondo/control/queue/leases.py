"""Leases of workers. A worker finishes a prompt under the lease it got it with, so each prompt ends once, however late
a worker is."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from rondo.control.config import QueueConfig
from rondo.control.queue.fair import HEAD_OF_LANE, in_order
from rondo.control.queue.finish import fail, finish
from rondo.control.queue.rows import AT_A_TIME, IDS, held
from rondo.control.queue.tally import Tally
from rondo.control.queue.work import Finished, Leased, Swept, Verdict, request_id
from rondo.control.store.clock import MICROSECONDS, Clock
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import QUEUED, bodies, groups, requests

LEASED_AT_MOST = 1000
"""Maximum number of prompts per call."""
FIRST_POLL, LONGEST_POLL = 0.05, 1.0
"""Seconds between looks for prompts that another process submitted; a submission in this process wakes at once."""

_WAITING = (
    sa.select(requests.c.id, requests.c.base, requests.c.priority, requests.c.turn)
    .where(QUEUED, requests.c.base == sa.bindparam("wanted"))
    .order_by(requests.c.priority, requests.c.turn, requests.c.id)
    .limit(sa.bindparam("number"))
    .with_for_update(skip_locked=True)
)
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
        requests.c.worker,
    )
    .where(requests.c.until <= sa.bindparam("now"))
    .order_by(requests.c.until)
    .limit(AT_A_TIME)
    .with_for_update(skip_locked=True)
)
_RETURN = (
    sa.update(requests).where(requests.c.id.in_(IDS)).values(state="queued", until=None, turn=HEAD_OF_LANE)
)


class Leases:
    def __init__(self, store: Store, config: QueueConfig | None = None, clock: Clock | None = None) -> None:
        self.store, self.config, self.clock = store, config or QueueConfig(), clock or store.clock

    def renew(self) -> Pending[None]:
        """Renews each lease for its full time, at the start of a gateway: workers could not renew while it was down.
        Rest periods are cut to the maximum."""

        def work(db: sa.Connection) -> None:
            now = self.clock.now(db)
            rested = now + _micro(self.config.longest_rest)
            db.execute(
                _RENEW.where(requests.c.state == "leased").values(until=now + _micro(self.config.lease))
            )
            db.execute(
                _RENEW.where(requests.c.state == "resting", requests.c.until > rested).values(until=rested)
            )

        return self.store.write(work)

    def take(self, worker: str, bases: Iterable[str], limit: int) -> Pending[list[Leased]]:
        """At most `limit` prompts of these base models: the lowest priority number first, then by fair share."""
        names, number = list(dict.fromkeys(bases)), min(limit, LEASED_AT_MOST)
        lease = secrets.token_hex(8)

        def work(db: sa.Connection) -> list[Leased]:
            rows = [row for name in names for row in db.execute(_WAITING, {"wanted": name, "number": number})]
            ids = in_order(rows, number)
            if not ids:
                return []
            until = self.clock.now(db) + _micro(self.config.lease)
            db.execute(_LEASE, {"ids": ids, "worker": worker, "lease": lease, "until": until})
            found = {row.id: row for row in db.execute(_LEASED, {"ids": ids})}
            tally = Tally()
            for row in found.values():
                tally.moved(row.model, "queued", "leased")
            tally.write(db)
            return [_leased(found[id], lease) for id in ids]

        return self.store.write(work)

    async def poll(self, worker: str, bases: Iterable[str], limit: int, seconds: float) -> list[Leased]:
        """`take` that waits up to `seconds` for the first prompt (long polling)."""
        names, end, pause = list(dict.fromkeys(bases)), time.monotonic() + seconds, FIRST_POLL
        while True:
            with self.store.signals.waiting(names) as arrived:
                taken = await self.take(worker, names, limit)
                left = end - time.monotonic()
                if taken or left <= 0:
                    return taken
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(arrived), min(pause, left))
            pause = min(2 * pause, LONGEST_POLL)

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
        return self.store.write(lambda db: finish(db, finished, self.clock.now(db), self.config))

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
        expired = [(row, _vanished(row.worker, self.config), True) for row in due if row.state == "leased"]
        verdicts = Counter(fail(db, expired, now, self.config, tally))
        rested = [row for row in due if row.state == "resting"]
        if rested:
            db.execute(_RETURN, {"ids": [row.id for row in rested]})
        for row in rested:
            tally.moved(row.model, "resting", "queued")
        tally.write(db)
        bases.update(row.base for row in rested)
        return Swept(verdicts["resting"], verdicts["dead"], len(rested)), len(due) == AT_A_TIME


def _leased(row: Any, lease: str) -> Leased:
    return Leased(request_id(row.name, row.place), lease, row.model, row.body, row.attempts)


def _vanished(worker: str, config: QueueConfig) -> str:
    return f"its worker ({worker}) sent no heartbeat for {config.lease:g} s"


def _micro(seconds: float) -> int:
    return int(seconds * MICROSECONDS)
