"""Who works at what. A request is given out under a lease, and who finishes must name it: so each ends once, whoever is
late."""

from __future__ import annotations

import heapq
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from rondo.control.clock import Clock
from rondo.control.config import QueueConfig
from rondo.control.rows import AT_A_TIME, Tally, held, lease_out, rows_of, waiting
from rondo.control.store import Store
from rondo.control.work import Finished, Leased, Swept, Verdict


class Leases:
    def __init__(self, store: Store, config: QueueConfig | None = None, clock: Clock | None = None) -> None:
        """Who held a lease before keeps it, and has all of its time again."""
        self.store, self.config, self.clock = store, config or QueueConfig(), clock or Clock()
        now = self.clock.now()
        leased, rested = now + self.config.lease, now + self.config.longest_rest

        def renew(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE requests SET until = ? WHERE until IS NOT NULL AND state = 'leased'", (leased,)
            )
            db.execute(
                "UPDATE requests SET until = ? WHERE until > ? AND state = 'resting'", (rested, rested)
            )

        store.write(renew)

    def take(self, worker: str, models: Iterable[str], limit: int) -> Future[list[Leased]]:
        """At most so many of those models' requests, the most urgent and then the oldest first."""
        names, until = list(dict.fromkeys(models)), self.clock.now() + self.config.lease
        lease = secrets.token_hex(8)

        def work(db: sqlite3.Connection) -> list[Leased]:
            chosen = heapq.merge(*(waiting(db, name, limit) for name in names))
            seqs = [seq for (_, seq), _ in zip(chosen, range(limit))]
            return lease_out(db, seqs, worker, lease, until)

        return self.store.submit(work)

    def beat(self, working: Sequence[tuple[str, str]]) -> Future[list[str]]:
        """A worker still works at these (id, lease). Says which are its own no more: it should drop them."""
        until = self.clock.now() + self.config.lease

        def work(db: sqlite3.Connection) -> list[str]:
            lost = []
            for id, lease in working:
                row = held(db, id)
                if row is None or row["state"] != "leased" or row["lease"] != lease:
                    lost.append(id)
                else:
                    db.execute("UPDATE requests SET until = ? WHERE seq = ?", (until, row["seq"]))
            return lost

        return self.store.submit(work)

    def finish(self, finished: Sequence[Finished]) -> Future[list[Verdict]]:
        """What a worker has done, each with what became of it. The same told twice is the same; what is told after the
        lease ran out counts if nobody else has begun with it."""
        now = self.clock.now()

        def work(db: sqlite3.Connection) -> list[Verdict]:
            tally = Tally()
            verdicts = [self._finished(db, each, now, tally) for each in finished]
            tally.write(db)
            return verdicts

        return self.store.submit(work)

    def sweep(self) -> Swept:
        """Takes work from who has not called for too long, and gives out again what has rested. To be called now and
        then, by one."""
        now = self.clock.now()
        total = Swept()
        while True:
            swept, more = self.store.write(lambda db: self._sweep(db, now))
            total = Swept(total.expired + swept.expired, total.dead + swept.dead, total.rested + swept.rested)
            if not more:
                return total

    def _finished(self, db: sqlite3.Connection, told: Finished, now: float, tally: Tally) -> Verdict:
        row = held(db, told.id)
        if row is None:
            return "unknown"
        state, late = row["state"], row["state"] in ("resting", "queued")
        if row["lease"] != told.lease or state == "cancelled":
            return "stale"
        if state in ("done", "dead"):  # told before, and the answer was lost
            return "done" if state == "done" else "dead"
        if told.error is not None:
            return "resting" if late else self._failed(db, row, told.error, told.again, now, tally)
        db.execute(
            "UPDATE requests SET state = 'done', result = ?, reason = NULL, until = NULL WHERE seq = ?",
            (told.result, row["seq"]),
        )
        tally.moved(row["model"], state, "done")
        tally.ended[row["group_seq"]] += 1
        return "done"

    def _failed(
        self, db: sqlite3.Connection, row: sqlite3.Row, reason: str, again: bool, now: float, tally: Tally
    ) -> Verdict:
        verdict: Verdict
        if again and row["attempts"] < self.config.attempts:
            verdict, until = "resting", now + self._rest(row["attempts"])
        else:
            verdict, until = "dead", None
            tally.ended[row["group_seq"]] += 1
        db.execute(
            "UPDATE requests SET state = ?, reason = ?, until = ? WHERE seq = ?",
            (verdict, reason, until, row["seq"]),
        )
        tally.moved(row["model"], "leased", verdict)
        return verdict

    def _rest(self, attempts: int) -> float:
        longest, doubled = self.config.longest_rest, min(attempts - 1, 60)
        return min(self.config.rest * 2.0**doubled, longest)

    def _sweep(self, db: sqlite3.Connection, now: float) -> tuple[Swept, bool]:
        due = rows_of(
            db,
            "SELECT seq, group_seq, model, state, attempts, worker FROM requests WHERE until <= ? LIMIT ?",
            (now, AT_A_TIME),
        )
        tally, verdicts = Tally(), Counter[str]()
        for row in due:
            if row["state"] == "leased":
                reason = f"its worker ({row['worker']}) has not been heard of for {self.config.lease:g} s"
                verdicts[self._failed(db, row, reason, True, now, tally)] += 1
            else:
                db.execute("UPDATE requests SET state = 'queued', until = NULL WHERE seq = ?", (row["seq"],))
                tally.moved(row["model"], "resting", "queued")
                verdicts["queued"] += 1
        tally.write(db)
        swept = Swept(verdicts["resting"], verdicts["dead"], verdicts["queued"])
        return swept, len(due) == AT_A_TIME
