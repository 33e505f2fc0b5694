"""Runs of evals and their output items: rows, states and counts.

    queued -> in_progress -> completed
       \\-> failed, canceled (OpenAI's spelling) from any state before

Items are graded in the order of the data source. Each change of a run names the state and the number of graded items
before, so that a driver that was overtaken changes nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound
from rondo.control.objects.evals import eval_of
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.store.clock import microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import eval_items, eval_runs

SIGNAL = "evals"
ENDED = ("completed", "failed", "canceled")

_columns, _items = eval_runs.c, eval_items.c


@dataclass(frozen=True)
class StoredRun:
    """Times are microseconds since the epoch. `source`, `metadata`, `error`, `by_criterion` and `usage` are JSON."""

    id: str
    eval: str
    owner: str
    name: str
    source: str
    model: str
    """Name of the sampled model; empty if the samples are in the data source."""
    metadata: str | None
    state: str
    created: int
    error: str | None = None
    queued_as: str | None = None
    """Name of its group in the queue."""
    total: int = 0
    graded: int = 0
    passed: int = 0
    failed: int = 0
    by_criterion: str = "{}"
    """Numbers of passed and failed items by the criterion's name."""
    usage: str = "{}"
    """Token counts by model."""
    ended: int | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The data source of the request."""
        found: dict[str, Any] = json.loads(self.source)
        return found


@dataclass(frozen=True)
class StoredItem:
    """Status: queued, pass, fail or error."""

    id: str
    run: str
    place: int
    item: str
    """JSON of the record."""
    sample: str | None
    """JSON: the sample of the data source, and after grading the sample as the API shows it."""
    results: str | None
    """JSON: one result of each criterion."""
    status: str
    created: int


@dataclass(frozen=True)
class GradedItem:
    """Result of one item."""

    place: int
    status: str
    sample: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]] = ()


_RUN = [_columns[name] for name in StoredRun.__dataclass_fields__]
_ITEM = [_items[name] for name in StoredItem.__dataclass_fields__]


class EvalRuns:
    """`owner=None` reaches the runs of all owners."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(
        self,
        eval: str,
        owner: str | None,
        key: str,
        name: str | None,
        source: Mapping[str, Any],
        metadata: Mapping[str, str] | None,
    ) -> Pending[StoredRun]:
        """`key`: id of the key that pays for the run."""
        id = f"evalrun_{secrets.token_hex(16)}"
        told = None if metadata is None else json.dumps(metadata)
        model = str(source.get("model") or "")
        made = StoredRun(id, eval, key, name or id, json.dumps(source), model, told, "queued", microseconds())

        def work(db: sa.Connection) -> StoredRun:
            eval_of(db, eval, owner)
            db.execute(sa.insert(eval_runs), vars(made))
            return made

        return self._announced(self.store.write(work))

    def get(self, id: str, eval: str, owner: str | None) -> Pending[StoredRun]:
        return self.store.read(lambda db: run_of(db, id, eval, owner))

    def page(
        self, eval: str, owner: str | None, query: PageQuery, state: str | None = None
    ) -> Pending[ObjectPage[StoredRun]]:
        wanted = sa.select(*_RUN).where(_columns.eval == eval)
        if state is not None:
            wanted = wanted.where(_columns.state == state)

        def work(db: sa.Connection) -> ObjectPage[StoredRun]:
            eval_of(db, eval, owner)
            rows, more = rows_of_page(db, wanted, _columns.number, _columns.id, query)
            return ObjectPage([StoredRun(*row) for row in rows], more)

        return self.store.read(work)

    def cancel(self, id: str, eval: str, owner: str | None) -> Pending[StoredRun]:
        """Graded items keep their results."""

        def work(db: sa.Connection) -> StoredRun:
            run = run_of(db, id, eval, owner)
            if run.state == "canceled":
                return run
            if run.ended is not None or not change(db, run, {"state": "canceled", "ended": microseconds()}):
                raise Conflict(
                    f"{id} is {run.state} and cannot be canceled.", param="run_id", code="run_state"
                )
            return run_of(db, id, eval, owner)

        return self._announced(self.store.write(work))

    def delete(self, id: str, eval: str, owner: str | None) -> Pending[StoredRun]:
        """The run as it was, with its group in the queue if it has not ended."""

        def work(db: sa.Connection) -> StoredRun:
            run = run_of(db, id, eval, owner)
            db.execute(sa.delete(eval_items).where(_items.run == id))
            db.execute(sa.delete(eval_runs).where(_columns.id == id))
            return run

        return self.store.write(work)

    def unended(self) -> Pending[list[StoredRun]]:
        """The oldest first."""
        wanted = sa.select(*_RUN).where(_columns.ended.is_(None)).order_by(_columns.number)
        return self.store.read(lambda db: [StoredRun(*row) for row in db.execute(wanted)])

    def change(self, run: StoredRun, **changes: Any) -> Pending[StoredRun | None]:
        """None if the run has been changed or deleted meanwhile."""

        def work(db: sa.Connection) -> StoredRun | None:
            return replace(run, **changes) if change(db, run, changes) else None

        return self.store.write(work)

    def add(self, run: StoredRun, items: Sequence[tuple[str, str | None]]) -> Pending[StoredRun | None]:
        """Adds records and their samples, both JSON, while the run is queued. None if it has been changed meanwhile."""
        now = microseconds()
        rows = [
            {
                "id": f"outputitem_{secrets.token_hex(16)}",
                "run": run.id,
                "place": run.total + number,
                "item": item,
                "sample": sample,
                "status": "queued",
                "created": now,
            }
            for number, (item, sample) in enumerate(items)
        ]
        changes: dict[str, Any] = {"total": run.total + len(rows)}

        def work(db: sa.Connection) -> StoredRun | None:
            if not change(db, run, changes):
                return None
            if rows:
                db.execute(sa.insert(eval_items), rows)
            return replace(run, **changes)

        return self.store.write(work)

    def items(self, run: str, begin: int, limit: int) -> Pending[list[StoredItem]]:
        """Items from a place on."""
        wanted = sa.select(*_ITEM).where(_items.run == run, _items.place >= begin)
        return self.store.read(
            lambda db: [StoredItem(*row) for row in db.execute(wanted.order_by(_items.place).limit(limit))]
        )

    def grade(
        self, run: StoredRun, graded: Sequence[GradedItem], usage: Mapping[str, Mapping[str, int]]
    ) -> Pending[StoredRun | None]:
        """Stores the results of the next items, with the run's counts. None if the run has been changed meanwhile."""
        changes = _counted(run, graded, usage)

        def work(db: sa.Connection) -> StoredRun | None:
            if not change(db, run, changes):
                return None
            for each in graded:
                values = {
                    "status": each.status,
                    "sample": json.dumps(each.sample),
                    "results": json.dumps(each.results),
                }
                here = _items.run == run.id, _items.place == each.place
                db.execute(sa.update(eval_items).where(*here).values(**values))
            return replace(run, **changes)

        return self.store.write(work)

    def output_page(
        self, id: str, eval: str, owner: str | None, query: PageQuery, status: str | None = None
    ) -> Pending[ObjectPage[StoredItem]]:
        """Graded items."""
        wanted = sa.select(*_ITEM).where(_items.run == id, _items.results.is_not(None))
        if status is not None:
            wanted = wanted.where(_items.status == status)

        def work(db: sa.Connection) -> ObjectPage[StoredItem]:
            run_of(db, id, eval, owner)
            rows, more = rows_of_page(db, wanted, _items.number, _items.id, query)
            return ObjectPage([StoredItem(*row) for row in rows], more)

        return self.store.read(work)

    def output(self, item: str, id: str, eval: str, owner: str | None) -> Pending[StoredItem]:
        wanted = sa.select(*_ITEM).where(_items.run == id, _items.id == item, _items.results.is_not(None))

        def work(db: sa.Connection) -> StoredItem:
            run_of(db, id, eval, owner)
            row = db.execute(wanted).first()
            if row is None:
                raise NotFound(
                    f"No such output item: {item[:100]}", param="output_item_id", code="item_not_found"
                )
            return StoredItem(*row)

        return self.store.read(work)

    def _announced(self, changed: Pending[StoredRun]) -> Pending[StoredRun]:
        changed.add_done_callback(lambda done: self.store.signals.notify([SIGNAL]))
        return changed


def run_of(db: sa.Connection, id: str, eval: str, owner: str | None) -> StoredRun:
    row: Any = db.execute(sa.select(*_RUN).where(_columns.id == id, _columns.eval == eval)).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"No such eval run: {id[:100]}", param="run_id", code="run_not_found")
    return StoredRun(*row)


def change(db: sa.Connection, run: StoredRun, changes: Mapping[str, Any]) -> bool:
    """Whether the run was as `run` has it, and has been changed."""
    same = (
        _columns.id == run.id,
        _columns.state == run.state,
        _columns.total == run.total,
        _columns.graded == run.graded,
    )
    return db.execute(sa.update(eval_runs).where(*same).values(**changes)).rowcount > 0


def _counted(
    run: StoredRun, graded: Sequence[GradedItem], added: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    by_criterion: dict[str, list[int]] = json.loads(run.by_criterion)
    for result in (result for each in graded for result in each.results if not result.get("error")):
        counts = by_criterion.setdefault(str(result["name"]), [0, 0])
        counts[0 if result["passed"] else 1] += 1
    usage: dict[str, dict[str, int]] = json.loads(run.usage)
    for model, counted in added.items():
        sums = usage.setdefault(model, {})
        for name, number in counted.items():
            sums[name] = sums.get(name, 0) + number
    return {
        "graded": run.graded + len(graded),
        "passed": run.passed + sum(each.status == "pass" for each in graded),
        "failed": run.failed + sum(each.status == "fail" for each in graded),
        "by_criterion": json.dumps(by_criterion),
        "usage": json.dumps(usage),
    }
