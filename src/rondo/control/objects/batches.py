r"""Batches: rows and their states.

    validating -> failed                          a line of the input file is invalid
       \-> in_progress -> finalizing -> completed
                \-> finalizing -> expired         the completion window is over; results until then are in the files
    validating or in_progress -> cancelling -> cancelled

`driver.py` moves a batch from state to state. Each change names the state before, so that a driver that was overtaken
changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, InvalidRequest, NotFound, Overloaded
from rondo.client.protocol.item import ITEM_PATHS
from rondo.control.config import BatchesConfig
from rondo.control.objects.blobs import Blobs
from rondo.control.objects.files import ORPHAN_SECONDS, file_of
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.duty import serialize
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import batches, groups

SIGNAL = "batches"
ENDED = ("failed", "completed", "expired", "cancelled")
WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW = 30 * 86400


@dataclass(frozen=True)
class StoredBatch:
    id: str
    owner: str
    endpoint: str
    input_file: str
    window: str
    output_expires_after: int | None
    metadata: str | None
    """JSON."""
    models: str
    """Models that the owner's key may use, separated by commas; empty for all."""
    state: str
    outcome: str
    """The state in which it will end, or has ended."""
    created: int
    expires: int
    model: str | None = None
    errors: str | None = None
    """JSON of the errors of an invalid input file."""
    queued_as: str | None = None
    """Name of its group in the queue."""
    total: int = 0
    written: int = 0
    """Requests whose results are in the output or error file, in the order of the input file."""
    completed: int = 0
    """Those of them in the output file."""
    input_read: int = 0
    """Offset in the input file after the line of the last one that was written."""
    output_bytes: int = 0
    error_bytes: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    started: int | None = None
    cancelled: int | None = None
    finalized: int | None = None
    ended: int | None = None
    answered: int | None = None
    """Requests that have ended in the queue."""

    @property
    def failed(self) -> int:
        return self.written - self.completed

    @property
    def counts(self) -> dict[str, int]:
        """While requests run, those that ended and are not written yet count as completed."""
        running = self.state == "in_progress" and self.answered is not None
        completed = max(self.completed, (self.answered or 0) - self.failed) if running else self.completed
        return {"total": self.total, "completed": completed, "failed": self.failed}


_columns = batches.c
_BATCH = [_columns[each.name] for each in fields(StoredBatch) if each.name != "answered"]
_WITH_GROUP = sa.select(*_BATCH, (groups.c.total - groups.c.unfinished).label("answered")).outerjoin_from(
    batches, groups, groups.c.name == _columns.queued_as
)


@dataclass(frozen=True)
class NewBatch:
    endpoint: str
    input_file: str
    window: str
    metadata: Mapping[str, str] | None = None
    output_expires_after: int | None = None


class Batches:
    """`owner=None` reaches the batches of all owners."""

    def __init__(self, store: Store, blobs: Blobs, config: BatchesConfig) -> None:
        self.store, self.blobs, self.config = store, blobs, config

    def create(
        self, owner: str, wanted: NewBatch, models: tuple[str, ...] = (), key: str | None = None
    ) -> Pending[StoredBatch]:
        """`key`: idempotency key. The batch has a name of its own for the input file, which may be deleted then."""
        seconds = window_seconds(wanted.window)
        check_endpoint(wanted.endpoint)
        batch = _new(owner, wanted, models, seconds)
        digest = hashlib.sha256(repr(wanted).encode()).hexdigest()

        def known(db: sa.Connection) -> StoredBatch | None:
            same = _columns.owner == owner, _columns.idempotency_key == key
            row = (
                None
                if key is None
                else db.execute(sa.select(_columns.id, _columns.digest).where(*same)).first()
            )
            if row is not None and row.digest != digest:
                raise Conflict(
                    f"The idempotency key {key!r} was used for another batch: use another key.",
                    param="Idempotency-Key",
                )
            return None if row is None else batch_of(db, row.id, owner)

        def check(db: sa.Connection) -> StoredBatch | None:
            if (there := known(db)) is not None:
                return there
            file = file_of(db, wanted.input_file, owner)
            if file.purpose != "batch":
                raise InvalidRequest(
                    f"{file.id} has the purpose {file.purpose!r}: upload the input file with purpose 'batch'.",
                    param="input_file_id",
                    code="invalid_purpose",
                )
            self._check_number(db, owner)
            return None

        def put(db: sa.Connection) -> StoredBatch:
            serialize(db, f"batches of {owner}")
            if (there := check(db)) is not None:
                return there
            values = {name: value for name, value in vars(batch).items() if name != "answered"}
            db.execute(sa.insert(batches), values | {"idempotency_key": key, "digest": digest})
            return batch

        def work() -> StoredBatch:
            there = self.store.read(check).result()
            if there is not None:
                return there
            self.blobs.link(self.blobs.kept(wanted.input_file), self.blobs.working(batch.id, "input"))
            made = self.store.write(put).result()
            if made.id != batch.id:
                self.blobs.remove_working(batch.id)
            self.store.signals.notify([SIGNAL])
            return made

        return self.store.background(work)

    def _check_number(self, db: sa.Connection, owner: str) -> None:
        limit = self.config.owner_batches
        if limit is None:
            return
        running = _columns.owner == owner, _columns.ended.is_(None)
        number = db.execute(sa.select(sa.func.count()).select_from(batches).where(*running)).scalar_one()
        if number >= limit:
            raise Overloaded(
                f"This key has {number} unfinished batches, the most that batches.owner_batches allows: wait until one "
                "has ended.",
                code="too_many_batches",
            )

    def get(self, id: str, owner: str | None) -> Pending[StoredBatch]:
        return self.store.read(lambda db: batch_of(db, id, owner))

    def page(self, owner: str | None, query: PageQuery) -> Pending[ObjectPage[StoredBatch]]:
        wanted = _WITH_GROUP if owner is None else _WITH_GROUP.where(_columns.owner == owner)

        def work(db: sa.Connection) -> ObjectPage[StoredBatch]:
            rows, more = rows_of_page(db, wanted, _columns.number, _columns.id, query)
            return ObjectPage([StoredBatch(*row) for row in rows], more)

        return self.store.read(work)

    def cancel(self, id: str, owner: str | None) -> Pending[StoredBatch]:
        """Requests that run are dropped, and results until then are published."""

        def work(db: sa.Connection) -> StoredBatch:
            batch = batch_of(db, id, owner)
            if batch.state in ("cancelling", "cancelled"):
                return batch
            changes = {"state": "cancelling", "outcome": "cancelled", "cancelled": microseconds()}
            if batch.state not in ("validating", "in_progress") or not change(db, batch, changes):
                raise Conflict(
                    f"{id} is {batch_of(db, id, owner).state} and cannot be cancelled.", param="id"
                )
            return batch_of(db, id, owner)

        cancelled = self.store.write(work)
        cancelled.add_done_callback(lambda done: self.store.signals.notify([SIGNAL]))
        return cancelled

    def sweep(self) -> Pending[None]:
        """Deletes working files of batches that have ended, which a crash left."""

        def work() -> None:
            there = {path.name.partition(".")[0] for path in self.blobs.names("batches", ORPHAN_SECONDS)}
            for id in there - set(self.running().result()):
                self.blobs.remove_working(id)

        return self.store.background(work)

    def running(self) -> Pending[list[str]]:
        """Ids of batches that have not ended, the oldest first."""
        wanted = sa.select(_columns.id).where(_columns.ended.is_(None)).order_by(_columns.number)
        return self.store.read(lambda db: list(db.execute(wanted).scalars()))


def batch_of(db: sa.Connection, id: str, owner: str | None) -> StoredBatch:
    row: Any = db.execute(_WITH_GROUP.where(_columns.id == id)).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"No such Batch object: {id[:100]}", param="id", code="batch_not_found")
    return StoredBatch(*row)


def change(db: sa.Connection, batch: StoredBatch, changes: Mapping[str, Any]) -> bool:
    """Whether the batch was as `batch` has it, and has been changed."""
    same = _columns.id == batch.id, _columns.state == batch.state, _columns.written == batch.written
    changed = db.execute(sa.update(batches).where(*same).values(**changes).returning(_columns.id))
    return changed.first() is not None


def window_seconds(window: str) -> int:
    match = WINDOW.fullmatch(window)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_WINDOW:
        raise InvalidRequest(
            f"completion_window is a time such as 24h, 30m or 7d, and at most 30 days; got {window!r}.",
            param="completion_window",
        )
    return seconds


def check_endpoint(endpoint: str) -> None:
    if endpoint not in ITEM_PATHS:
        raise InvalidRequest(
            f"Batches for {endpoint!r} are not supported. Supported: {', '.join(sorted(ITEM_PATHS))}.",
            param="endpoint",
            code="invalid_endpoint",
        )


def _new(owner: str, wanted: NewBatch, models: tuple[str, ...], seconds: int) -> StoredBatch:
    now = microseconds()
    return StoredBatch(
        id=f"batch_{secrets.token_hex(16)}",
        owner=owner,
        endpoint=wanted.endpoint,
        input_file=wanted.input_file,
        window=wanted.window,
        output_expires_after=wanted.output_expires_after,
        metadata=None if wanted.metadata is None else json.dumps(wanted.metadata),
        models=",".join(models),
        state="validating",
        outcome="completed",
        created=now,
        expires=now + seconds * MICROSECONDS,
    )
