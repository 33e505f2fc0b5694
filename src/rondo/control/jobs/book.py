"""Rows and events of jobs. Each change of a state is a compare-and-set on (attempt, state) with an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound
from rondo.base.ids import new_id
from rondo.base.storage.hashing import sha256_json
from rondo.control.jobs.states import FINAL, NEXT, JobState
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.duty import serialize
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import job_events, jobs
from rondo.jobs.spec import JobSpec

T = TypeVar("T")
LONGEST_MESSAGE = 4000
SIGNAL = "jobs"
"""Sent when a job is submitted, cancelled, paused or resumed."""
DEPTH = 50
"""Waiting jobs of an owner that a pass considers: one behind many that do not fit waits until some of them start."""
_spec = lru_cache(4096)(JobSpec.from_json)
"""Each pass of the reconciler reads the same rows."""


@dataclass(frozen=True)
class JobRow:
    """A job in the store. Times are microseconds since the epoch. `launched`: a process of the attempt may exist."""

    number: int
    id: str
    owner: str
    digest: str
    kind: str
    model: str
    text: str
    state: JobState
    attempt: int
    failures: int
    launcher: str
    launched: bool
    hash: str | None
    """Name of the job's folder, once its process has computed it."""
    result: str | None
    """Name of the resulting model, chosen at submission; it answers when the job has succeeded."""
    error_text: str | None
    not_before: int
    created: int
    started: int | None
    ended: int | None

    @property
    def spec(self) -> JobSpec:
        return _spec(self.text)

    @property
    def error(self) -> dict[str, Any] | None:
        """`message`, `param` and `code` of a failed job."""
        return None if self.error_text is None else json.loads(self.error_text)

    @property
    def final(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True)
class JobEvent:
    id: int
    time: int
    level: str
    message: str


_columns = jobs.c
_ROW = tuple(jobs.columns)
_OPEN = (
    sa.select(*_ROW)
    .where(sa.or_(_columns.ended.is_(None), sa.text("jobs.launched")))
    .order_by(_columns.number)
)
"""The text of the condition is that of the partial index `jobs_open`, which SQLite compares."""
_LAUNCHED = _OPEN.where(_columns.launched)
_EVENT = (job_events.c.id, job_events.c.time, job_events.c.level, job_events.c.message)


class JobBook:
    def __init__(self, store: Store) -> None:
        self.store = store

    def submit(
        self,
        spec: JobSpec,
        owner: str,
        *,
        launcher: str = "local",
        prefix: str = "job",
        result: str | None = None,
        gone: Callable[[JobRow], bool] = lambda row: False,
    ) -> Pending[tuple[JobRow, bool]]:
        """The job, and whether it is new: an equal specification of the same owner that has not failed and was not
        cancelled is the same job, if its result has the same name and is not `gone`. `result` may contain `{id}`; one
        without it passes from an ended job to the new one."""
        id, now = new_id(prefix)[: len(prefix) + 25], microseconds()
        digest = sha256_json([spec.digest, prefix, result])
        values = {
            "id": id,
            "owner": owner,
            "digest": digest,
            "kind": spec.kind,
            "model": spec.model,
            "spec": spec.to_json(),
            "state": "queued",
            "attempt": 0,
            "failures": 0,
            "launcher": launcher,
            "launched": False,
            "result": None if result is None else result.replace("{id}", id.rpartition("-")[2][:8]),
            "not_before": 0,
            "created": now,
        }

        def work(db: sa.Connection) -> tuple[JobRow, bool]:
            serialize(db, f"job {digest}")
            same = sa.select(*_ROW).where(
                _columns.digest == digest,
                _columns.owner == owner,
                _columns.state.not_in(("failed", "cancelled")),
            )
            for found in db.execute(same.order_by(_columns.number.desc())):
                if not gone(row := JobRow(*found)):
                    return row, False
            if result is not None:
                before = sa.update(jobs).where(_columns.result == values["result"], _columns.owner == owner)
                db.execute(before.where(_columns.ended.is_not(None)).values(result=None))
            db.execute(sa.insert(jobs), values)
            _event(db, id, "info", f"Job {id} was submitted.")
            return _row(db, id, None), True

        return self._requested(work)

    def get(self, id: str, owner: str | None = None, prefix: str = "") -> Pending[JobRow]:
        """The job with this id, hash or name of a resulting model. With `owner`, only that owner's jobs exist, and with
        `prefix` only those whose ids begin so."""

        return self.store.read(lambda db: _row(db, id, owner, prefix))

    def all(
        self,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 20,
        prefix: str = "",
        kind: str | None = None,
        states: tuple[JobState, ...] = (),
    ) -> Pending[list[JobRow]]:
        """The newest first; only those submitted before the job `after`, of this kind, and in one of the states."""
        wanted = sa.select(*_ROW).order_by(_columns.number.desc()).limit(limit)
        if prefix:
            wanted = wanted.where(_columns.id.startswith(prefix + "-"))
        if owner is not None:
            wanted = wanted.where(_columns.owner == owner)
        if kind is not None:
            wanted = wanted.where(_columns.kind == kind)
        if states:
            wanted = wanted.where(_columns.state.in_(states))

        def work(db: sa.Connection) -> list[JobRow]:
            older = wanted
            if after is not None:
                older = wanted.where(_columns.number < _row(db, after, owner).number)
            return [JobRow(*row) for row in db.execute(older)]

        return self.store.read(work)

    def waiting(self, launchers: Iterable[str]) -> Pending[list[JobRow]]:
        """The `DEPTH` oldest queued jobs of each owner and launcher whose pause is over; the oldest first."""
        groups = (_columns.launcher, _columns.owner.concat(""))  # an expression, or SQLite scans `jobs_owner`
        place = sa.func.row_number().over(partition_by=groups, order_by=_columns.number).label("place")
        ranked = sa.select(_columns.number, place).where(
            _columns.ended.is_(None),
            _columns.state == "queued",
            sa.not_(_columns.launched),
            _columns.not_before <= sa.bindparam("now"),
            _columns.launcher.in_(list(launchers)),
        )
        oldest = ranked.subquery()
        wanted = sa.select(*_ROW).join(oldest, oldest.c.number == _columns.number)
        wanted = wanted.where(oldest.c.place <= DEPTH).order_by(_columns.number)

        def work(db: sa.Connection) -> list[JobRow]:
            return [JobRow(*row) for row in db.execute(wanted, {"now": self.store.clock.now(db)})]

        return self.store.read(work)

    def launched(self) -> Pending[list[JobRow]]:
        """Jobs whose process may exist; the oldest first."""
        return self.store.read(lambda db: [JobRow(*row) for row in db.execute(_LAUNCHED)])

    def unended(self, owner: str | None = None) -> Pending[list[JobRow]]:
        """Jobs that have not ended; the oldest first."""
        wanted = _OPEN.where(_columns.ended.is_(None))
        if owner is not None:
            wanted = wanted.where(_columns.owner == owner)
        return self.store.read(lambda db: [JobRow(*row) for row in db.execute(wanted)])

    def has(self, hash: str) -> Pending[bool]:
        """Whether a job has this hash."""
        wanted = sa.select(_columns.number).where(_columns.hash == hash).limit(1)
        return self.store.read(lambda db: db.execute(wanted).first() is not None)

    def move(
        self, job: JobRow, to: JobState, message: str, pause: float | None = None, **facts: Any
    ) -> Pending[JobRow | None]:
        """Changes the state if attempt and state are unchanged since `job` was read; None otherwise. A queued job waits
        for `pause` seconds by the clock of the store. `facts` are other columns."""
        if to not in NEXT[job.state]:
            raise Conflict(f"Job {job.id} is {job.state} and cannot become {to}.", code="job_state")
        now = microseconds()
        values: dict[str, Any] = {"state": to, **facts}
        if to in FINAL:
            values["ended"] = now
        if to == "running" and job.started is None:
            values["started"] = now

        def work(db: sa.Connection) -> JobRow | None:
            if pause is not None:
                values["not_before"] = self.store.clock.now(db) + int(pause * MICROSECONDS)
            if not _set(db, job, values):
                return None
            _event(db, job.id, "error" if to == "failed" else "info", message)
            return _row(db, job.id, None)

        return self.store.write(work)

    def note(self, job: JobRow, **facts: Any) -> Pending[bool]:
        """Changes columns other than the state, if attempt and state are unchanged since `job` was read."""
        return self.store.write(lambda db: _set(db, job, facts))

    def remark(self, job: JobRow, message: str, level: str = "info") -> Pending[bool]:
        """An event without a change of the state, unless it repeats the newest one."""
        newest = sa.select(job_events.c.message).where(job_events.c.job == job.id)

        def work(db: sa.Connection) -> bool:
            last = db.execute(newest.order_by(job_events.c.id.desc()).limit(1)).scalar()
            if last != message[:LONGEST_MESSAGE]:
                _event(db, job.id, level, message)
            return last != message[:LONGEST_MESSAGE]

        return self.store.write(work)

    def events(self, id: str, after: int | None = None, limit: int = 20) -> Pending[list[JobEvent]]:
        """The newest first; only those older than the event `after`."""
        wanted = (
            sa.select(*_EVENT).where(job_events.c.job == id).order_by(job_events.c.id.desc()).limit(limit)
        )
        if after is not None:
            wanted = wanted.where(job_events.c.id < after)
        return self.store.read(lambda db: [JobEvent(*row) for row in db.execute(wanted)])

    def cancel(self, id: str, owner: str | None = None) -> Pending[JobRow]:
        """The job, cancelled at once; the reconciler ends its process. A job that has ended is a `Conflict`."""

        def work(db: sa.Connection) -> JobRow:
            job = _row(db, id, owner)
            if job.state == "cancelled":
                return job
            _change(db, job, "cancelled", "Job was cancelled.", ended=microseconds())
            return _row(db, id, owner)

        return self._requested(work)

    def pause(self, id: str, owner: str | None = None) -> Pending[JobRow]:
        """A running job saves a checkpoint and ends; a queued one stays until it is resumed."""

        def work(db: sa.Connection) -> JobRow:
            job = _row(db, id, owner)
            if job.state in ("pausing", "paused"):
                return job
            to: JobState = "paused" if job.state == "queued" else "pausing"
            _change(db, job, to, "Job is paused." if to == "paused" else "Job is pausing.")
            return _row(db, id, owner)

        return self._requested(work)

    def resume(self, id: str, owner: str | None = None) -> Pending[JobRow]:
        """Queues a paused job, which continues from its last checkpoint."""

        def work(db: sa.Connection) -> JobRow:
            job = _row(db, id, owner)
            _change(db, job, "queued", "Job is queued again.", not_before=0)
            return _row(db, id, owner)

        return self._requested(work)

    def _requested(self, work: Callable[[sa.Connection], T]) -> Pending[T]:
        """A change that the reconciler of this process need not find by itself."""
        pending = self.store.write(work)
        pending.add_done_callback(lambda done: self.store.signals.notify([SIGNAL]))
        return pending

    def uses(self, text: str) -> Pending[bool]:
        """Whether the specification of any job contains the text."""
        wanted = sa.select(_columns.number).where(_columns.spec.contains(text, autoescape=True)).limit(1)
        return self.store.read(lambda db: db.execute(wanted).first() is not None)

    def delete(self, id: str, owner: str | None = None) -> Pending[JobRow]:
        """Deletes the row and the events of a job that has ended and has no process."""

        def work(db: sa.Connection) -> JobRow:
            job = _row(db, id, owner)
            if not job.final or job.launched:
                raise Conflict(
                    f"Job {job.id} is {job.state}: cancel it first, and delete it when its process has ended.",
                    code="job_state",
                )
            db.execute(sa.delete(job_events).where(job_events.c.job == job.id))
            db.execute(sa.delete(jobs).where(_columns.number == job.number))
            return job

        return self.store.write(work)


def _row(db: sa.Connection, id: str, owner: str | None, prefix: str = "") -> JobRow:
    """The newest job with this id, hash or name of a resulting model among those of the owner."""
    wanted = sa.select(*_ROW).where(sa.or_(_columns.id == id, _columns.result == id, _columns.hash == id))
    if owner is not None:
        wanted = wanted.where(_columns.owner == owner)
    if prefix:
        wanted = wanted.where(_columns.id.startswith(prefix, autoescape=True))
    found = db.execute(wanted.order_by(_columns.number.desc()).limit(1)).first()
    if found is None:
        raise NotFound(f"There is no job {id!r}.", param="job", code="job_not_found")
    return JobRow(*found)


def _set(db: sa.Connection, job: JobRow, values: dict[str, Any]) -> bool:
    mine = sa.update(jobs).where(
        _columns.number == job.number, _columns.attempt == job.attempt, _columns.state == job.state
    )
    return bool(db.execute(mine.values(**values)).rowcount)


def _change(db: sa.Connection, job: JobRow, to: JobState, message: str, **facts: Any) -> None:
    if to not in NEXT[job.state]:
        raise Conflict(f"Job {job.id} is {job.state} and cannot become {to}.", code="job_state")
    if not _set(db, job, {"state": to, **facts}):
        raise Conflict(f"The state of job {job.id} has just changed: try again.", code="job_state")
    _event(db, job.id, "info", message)


def _event(db: sa.Connection, id: str, level: str, message: str) -> None:
    values = {"job": id, "time": microseconds(), "level": level, "message": message[:LONGEST_MESSAGE]}
    db.execute(sa.insert(job_events), values)
