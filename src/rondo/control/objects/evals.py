"""Evals: the form of the items, and the criteria that grade a sample of each. Runs are in `eval_runs.py`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import NotFound
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.store.clock import microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import eval_items, eval_runs, evals

_columns = evals.c


@dataclass(frozen=True)
class StoredEval:
    """Times are microseconds since the epoch. `source_config`, `criteria` and `metadata` are JSON."""

    id: str
    owner: str
    name: str
    source_config: str
    criteria: str
    metadata: str | None
    created: int
    updated: int

    @property
    def graders(self) -> list[dict[str, Any]]:
        """Testing criteria: graders with names of their own."""
        found: list[dict[str, Any]] = json.loads(self.criteria)
        return found

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.source_config)
        return found


_EVAL = [_columns[name] for name in StoredEval.__dataclass_fields__]


class Evals:
    """`owner=None` reaches the evals of all owners."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(
        self,
        owner: str,
        name: str | None,
        config: Mapping[str, Any],
        criteria: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, str] | None,
    ) -> Pending[StoredEval]:
        id, now = f"eval_{secrets.token_hex(16)}", microseconds()
        made = StoredEval(
            id, owner, name or id, json.dumps(config), json.dumps(criteria), _text(metadata), now, now
        )

        def work(db: sa.Connection) -> StoredEval:
            db.execute(sa.insert(evals), vars(made))
            return made

        return self.store.write(work)

    def get(self, id: str, owner: str | None) -> Pending[StoredEval]:
        return self.store.read(lambda db: eval_of(db, id, owner))

    def page(
        self, owner: str | None, query: PageQuery, by_update: bool = False
    ) -> Pending[ObjectPage[StoredEval]]:
        wanted = sa.select(*_EVAL) if owner is None else sa.select(*_EVAL).where(_columns.owner == owner)
        number = _columns.updated if by_update else _columns.number

        def work(db: sa.Connection) -> ObjectPage[StoredEval]:
            rows, more = rows_of_page(db, wanted, number, _columns.id, query)
            return ObjectPage([StoredEval(*row) for row in rows], more)

        return self.store.read(work)

    def update(self, id: str, owner: str | None, changes: Mapping[str, Any]) -> Pending[StoredEval]:
        """`changes`: `name`, `metadata` or both."""
        values = {name: _text(value) if name == "metadata" else value for name, value in changes.items()}

        def work(db: sa.Connection) -> StoredEval:
            eval_of(db, id, owner)
            db.execute(sa.update(evals).where(_columns.id == id).values(**values, updated=microseconds()))
            return eval_of(db, id, owner)

        return self.store.write(work)

    def delete(self, id: str, owner: str | None) -> Pending[list[str]]:
        """Deletes an eval with its runs and their items. Names of the runs' groups in the queue."""

        def work(db: sa.Connection) -> list[str]:
            eval_of(db, id, owner)
            runs = sa.select(eval_runs.c.id).where(eval_runs.c.eval == id)
            queued = eval_runs.c.eval == id, eval_runs.c.queued_as.is_not(None), eval_runs.c.ended.is_(None)
            groups = list(db.execute(sa.select(eval_runs.c.queued_as).where(*queued)).scalars())
            db.execute(sa.delete(eval_items).where(eval_items.c.run.in_(runs)))
            db.execute(sa.delete(eval_runs).where(eval_runs.c.eval == id))
            db.execute(sa.delete(evals).where(_columns.id == id))
            return groups

        return self.store.write(work)


def eval_of(db: sa.Connection, id: str, owner: str | None) -> StoredEval:
    row: Any = db.execute(sa.select(*_EVAL).where(_columns.id == id)).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(f"No such Eval object: {id[:100]}", param="eval_id", code="eval_not_found")
    return StoredEval(*row)


def _text(metadata: Mapping[str, str] | None) -> str | None:
    return None if metadata is None else json.dumps(metadata)
