"""The durable queue. Every prompt is a row of its own:

    queued -> leased -> done
                 \\-> resting -> queued ...     its worker failed or vanished, and tries are left
                 \\-> dead                      none is left, or another would not help; the reason is kept
    any of these but done and dead -> cancelled

Here is who sends work and who looks at it; who works is in `leases`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rondo.base.errors import Conflict, NotFound
from rondo.base.ids import new_id
from rondo.control.config import QueueConfig
from rondo.control.rows import (
    AT_A_TIME,
    GROUP,
    REQUEST,
    UNENDED,
    Tally,
    as_group,
    as_request,
    cancel_rows,
    digest_of,
    end_groups,
    group_of,
    group_of_key,
    insert,
)
from rondo.control.store import Store
from rondo.control.work import Group, New, QueuedRequest, parted


class Queue:
    def __init__(self, store: Store, config: QueueConfig | None = None) -> None:
        self.store, self.config = store, config or QueueConfig()

    # Who sends work

    def put(
        self, prompts: Sequence[New], owner: str = "", *, key: str | None = None, sealed: bool = True
    ) -> Future[Group]:
        """A group of them, once the disk has it. The same `key` of the same owner again is the same group, if the
        prompts are the same. One that is not sealed may be extended."""
        digest = digest_of(prompts)
        name, created = new_id("gen"), time.time()

        def work(db: sqlite3.Connection) -> Group:
            if key is not None and (there := group_of_key(db, owner, key)) is not None:
                group, known = there
                if known != digest:
                    raise Conflict(
                        f"the idempotency key {key!r} has been used for something else: send what was sent with it, or "
                        "another key",
                        param="idempotency_key",
                    )
                return group
            ended = created if sealed and not prompts else None
            values = (name, owner, key, digest, sealed, len(prompts), len(prompts), created, ended)
            cursor = db.execute(
                "INSERT INTO groups (name, owner, idempotency_key, digest, sealed, total, unfinished, created, ended) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            assert cursor.lastrowid is not None
            insert(db, cursor.lastrowid, 0, prompts)
            return Group(name, owner, len(prompts), len(prompts), sealed, created, ended)

        return self.store.submit(work)

    def extend(self, name: str, at: int, prompts: Sequence[New], *, seal: bool = False) -> Future[Group]:
        """More of a group. `at` is how many it is thought to have: who tries again after an answer was lost is told
        so by a `Conflict`, and nothing is added twice."""

        def work(db: sqlite3.Connection) -> Group:
            seq, group = group_of(db, name)
            if group.sealed:
                raise Conflict(f"{name} is complete, with {group.total} requests: nothing can be added")
            if group.total != at:
                raise Conflict(f"{name} has {group.total} requests, not {at}: go on from there", param="at")
            insert(db, seq, at, prompts)
            db.execute(
                "UPDATE groups SET total = total + ?, unfinished = unfinished + ?, sealed = ? WHERE seq = ?",
                (len(prompts), len(prompts), seal, seq),
            )
            end_groups(db, [seq])
            return group_of(db, name)[1]

        return self.store.submit(work)

    def cancel(self, name: str) -> Group:
        """What has not ended. Who works at it is told at the next call, and what it finishes is nobody's."""
        while True:
            left, group = self.store.write(lambda db: self._cancelled(db, name))
            if not left:
                return group

    def clear(self) -> int:
        """Cancels all that waits, of everybody. Says how many."""

        def work(db: sqlite3.Connection) -> int:
            rows = db.execute(
                "SELECT seq, group_seq, model, state FROM requests WHERE state = 'queued' LIMIT ?",
                (AT_A_TIME,),
            ).fetchall()
            cancel_rows(db, rows)
            return len(rows)

        total = 0
        while cleared := self.store.write(work):
            total += cleared
        return total

    def revive(self, name: str) -> Future[int]:
        """The dead letters of a group are tried again, as if for the first time. Says how many there are."""

        def work(db: sqlite3.Connection) -> int:
            seq, _ = group_of(db, name)
            rows = db.execute(
                "SELECT model, COUNT(*) FROM requests WHERE group_seq = ? AND state = 'dead' GROUP BY model",
                (seq,),
            ).fetchall()
            db.execute(
                "UPDATE requests SET state = 'queued', attempts = 0, reason = NULL, worker = NULL, lease = NULL "
                "WHERE group_seq = ? AND state = 'dead'",
                (seq,),
            )
            number = sum(int(count) for _, count in rows)
            db.execute(
                "UPDATE groups SET unfinished = unfinished + ?, ended = CASE WHEN ? THEN NULL ELSE ended END "
                "WHERE seq = ?",
                (number, number, seq),
            )
            tally = Tally()
            for model, count in rows:
                tally.moved(model, "dead", "queued", count)
            tally.write(db)
            return number

        return self.store.submit(work)

    def prune(self) -> int:
        """Removes groups that ended long enough ago, with all of theirs. Says how many."""
        before = time.time() - self.config.keep

        def work(db: sqlite3.Connection) -> int | None:
            """How many groups went; None if nothing did."""
            row = db.execute(
                "SELECT seq FROM groups WHERE ended <= ? ORDER BY ended LIMIT 1", (before,)
            ).fetchone()
            if row is None:
                return None
            rows = db.execute(
                "SELECT seq, model, state FROM requests WHERE group_seq = ? LIMIT ?", (row[0], AT_A_TIME)
            ).fetchall()
            db.executemany("DELETE FROM requests WHERE seq = ?", [(seq,) for seq, _, _ in rows])
            tally = Tally()
            for _, model, state in rows:
                tally.moved(model, state, None)
            tally.write(db)
            if len(rows) == AT_A_TIME:
                return 0
            db.execute("DELETE FROM groups WHERE seq = ?", row)
            return 1

        pruned = 0
        while (gone := self.store.write(work)) is not None:
            pruned += gone
        return pruned

    # Who looks

    def group(self, name: str) -> Group:
        return self.store.read(lambda db: group_of(db, name)[1])

    def groups(self, owner: str | None = None, before: float | None = None, limit: int = 50) -> list[Group]:
        """The newest first; `before`: created before that."""
        clauses, values = ["1 = 1"], list[Any]()
        if owner is not None:
            clauses, values = [*clauses, "owner = ?"], [*values, owner]
        if before is not None:
            clauses, values = [*clauses, "created < ?"], [*values, before]
        text = f"SELECT {GROUP} FROM groups WHERE {' AND '.join(clauses)} ORDER BY seq DESC LIMIT ?"
        return self.store.read(lambda db: [as_group(row) for row in db.execute(text, (*values, limit))])

    def requests(self, name: str, after: int = -1, limit: int = 1000) -> list[QueuedRequest]:
        """Of a group, in its order, those whose places are greater than `after`."""

        def work(db: sqlite3.Connection) -> list[QueuedRequest]:
            seq, _ = group_of(db, name)
            rows = db.execute(
                f"SELECT {REQUEST} FROM requests r JOIN groups g ON g.seq = r.group_seq "
                "WHERE r.group_seq = ? AND r.place > ? ORDER BY r.place LIMIT ?",
                (seq, after, limit),
            )
            return [as_request(row) for row in rows]

        return self.store.read(work)

    def request(self, id: str) -> QueuedRequest:
        name, place = parted(id) or ("", 0)
        row = self.store.read(
            lambda db: db.execute(
                f"SELECT {REQUEST} FROM requests r JOIN groups g ON g.seq = r.group_seq "
                "WHERE g.name = ? AND r.place = ?",
                (name, place),
            ).fetchone()
        )
        if row is None:
            raise NotFound(f"there is no request {id!r}", param="request_id")
        return as_request(row)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many there are of each model in each state."""
        rows = self.store.read(
            lambda db: db.execute("SELECT model, state, number FROM counts WHERE number > 0").fetchall()
        )
        return {(model, state): number for model, state, number in rows}

    def _cancelled(self, db: sqlite3.Connection, name: str) -> tuple[int, Group]:
        seq, _ = group_of(db, name)
        rows = db.execute(
            "SELECT seq, group_seq, model, state FROM requests WHERE group_seq = ? AND state IN (?, ?, ?) LIMIT ?",
            (seq, *UNENDED, AT_A_TIME),
        ).fetchall()
        db.execute("UPDATE groups SET sealed = 1 WHERE seq = ?", (seq,))
        cancel_rows(db, rows)
        end_groups(db, [seq])
        return len(rows), group_of(db, name)[1]
