"""The queue's rows, within a transaction that the caller has begun."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rondo.base.errors import NotFound
from rondo.control.work import Group, Leased, New, QueuedRequest, parted, request_id

GROUP = "name, owner, total, unfinished, sealed, created, ended"
REQUEST = "g.name, r.place, r.model, r.state, r.body, r.attempts, r.worker, r.result, r.reason"
AT_A_TIME = 5000
"""Rows that one statement changes, where there may be very many."""
UNENDED = ("queued", "leased", "resting")


class Tally:
    """What a piece of work changes of the counts: of each model by state, and of each group's unfinished."""

    def __init__(self) -> None:
        self.states: Counter[tuple[str, str]] = Counter()
        self.ended: Counter[int] = Counter()
        """By group."""

    def moved(self, model: str, before: str | None, after: str | None, number: int = 1) -> None:
        if before is not None:
            self.states[model, before] -= number
        if after is not None:
            self.states[model, after] += number

    def write(self, db: sqlite3.Connection) -> None:
        db.executemany(
            "INSERT INTO counts (model, state, number) VALUES (?, ?, ?) "
            "ON CONFLICT (model, state) DO UPDATE SET number = number + excluded.number",
            [(model, state, number) for (model, state), number in self.states.items() if number],
        )
        db.executemany(
            "UPDATE groups SET unfinished = unfinished - ? WHERE seq = ?",
            [(number, group) for group, number in self.ended.items()],
        )
        end_groups(db, list(self.ended))


def digest_of(prompts: Sequence[New]) -> str:
    digest = hashlib.sha256()
    for each in prompts:
        for part in (each.model, str(each.priority), each.body):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def insert(db: sqlite3.Connection, group: int, at: int, prompts: Sequence[New]) -> None:
    db.executemany(
        "INSERT INTO requests (group_seq, place, model, priority, state, body) VALUES (?, ?, ?, ?, 'queued', ?)",
        ((group, place, each.model, each.priority, each.body) for place, each in enumerate(prompts, at)),
    )
    tally = Tally()
    for model, number in Counter(each.model for each in prompts).items():
        tally.moved(model, None, "queued", number)
    tally.write(db)


def waiting(db: sqlite3.Connection, model: str, limit: int) -> list[tuple[int, int]]:
    """(priority, seq)."""
    return db.execute(
        "SELECT priority, seq FROM requests WHERE state = 'queued' AND model = ? ORDER BY priority, seq LIMIT ?",
        (model, limit),
    ).fetchall()


def lease_out(
    db: sqlite3.Connection, seqs: Sequence[int], worker: str, lease: str, until: float
) -> list[Leased]:
    tally, found = Tally(), list[Leased]()
    for seq in seqs:
        (row,) = rows_of(
            db,
            "UPDATE requests SET state = 'leased', worker = ?, lease = ?, until = ?, attempts = attempts + 1 "
            "WHERE seq = ? RETURNING group_seq, place, model, body, attempts",
            (worker, lease, until, seq),
        )
        (name,) = db.execute("SELECT name FROM groups WHERE seq = ?", (row["group_seq"],)).fetchone()
        id = request_id(name, row["place"])
        found.append(Leased(id, lease, row["model"], row["body"], row["attempts"]))
        tally.moved(row["model"], "queued", "leased")
    tally.write(db)
    return found


def held(db: sqlite3.Connection, id: str) -> sqlite3.Row | None:
    if (parts := parted(id)) is None:
        return None
    rows = rows_of(
        db,
        "SELECT r.seq, r.group_seq, r.model, r.state, r.lease, r.attempts FROM groups g "
        "JOIN requests r ON r.group_seq = g.seq WHERE g.name = ? AND r.place = ?",
        parts,
    )
    return rows[0] if rows else None


def cancel_rows(db: sqlite3.Connection, rows: Sequence[tuple[int, int, str, str]]) -> None:
    """Rows of (seq, group, model, state)."""
    tally = Tally()
    for seq, group, model, state in rows:
        db.execute("UPDATE requests SET state = 'cancelled', until = NULL WHERE seq = ?", (seq,))
        tally.moved(model, state, "cancelled")
        tally.ended[group] += 1
    tally.write(db)


def end_groups(db: sqlite3.Connection, groups: Sequence[int]) -> None:
    db.executemany(
        "UPDATE groups SET ended = ? WHERE seq = ? AND sealed AND unfinished = 0 AND ended IS NULL",
        [(time.time(), group) for group in groups],
    )


def rows_of(db: sqlite3.Connection, text: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    cursor = db.execute(text, values)
    cursor.row_factory = sqlite3.Row
    return cursor.fetchall()


def group_of(db: sqlite3.Connection, name: str) -> tuple[int, Group]:
    row = db.execute(f"SELECT seq, {GROUP} FROM groups WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(f"there is no group {name!r}", param="request_id")
    return row[0], as_group(row[1:])


def group_of_key(db: sqlite3.Connection, owner: str, key: str) -> tuple[Group, str] | None:
    row = db.execute(
        f"SELECT digest, {GROUP} FROM groups WHERE owner = ? AND idempotency_key = ?", (owner, key)
    ).fetchone()
    return None if row is None else (as_group(row[1:]), row[0])


def as_group(row: Sequence[Any]) -> Group:
    name, owner, total, unfinished, sealed, created, ended = row
    return Group(name, owner, total, unfinished, bool(sealed), created, ended)


def as_request(row: Sequence[Any]) -> QueuedRequest:
    name, place, model, state, body, attempts, worker, result, reason = row
    return QueuedRequest(request_id(name, place), model, state, body, attempts, worker, result, reason)
