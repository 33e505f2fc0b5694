"""Rows of the registry: registration, look-up by name, aliases, promotion and rollback.

An alias has one row per change. The newest row is its target; a rollback deletes it. The promoted version of a name is
an alias with that name.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, Forbidden, InvalidRequest, NotFound
from rondo.base.storage.hashing import sha256_json
from rondo.control.jobs.registry.rows import (
    CHECKPOINT,
    HASH,
    LATEST,
    Alias,
    NewModel,
    RegisteredModel,
    check_name,
    checkpoint_name,
)
from rondo.control.store.clock import microseconds
from rondo.control.store.duty import serialize
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import registry, registry_aliases
from rondo.jobs.folders import SHORT

_columns, _aliases = registry.c, registry_aliases.c
_ROW = tuple(registry.columns)
_ANSWERING = _columns.kind != "reward"
"""A reward model returns scores, not text, so that it is never the latest model."""
SHORTEST_PREFIX = 6


class ModelRegistry:
    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, model: NewModel, owner: str) -> Pending[RegisteredModel]:
        """Registers the model, or updates the facts of a registered one. A name belongs to the owner of its first
        model."""
        values: dict[str, Any] = {
            "kind": model.kind,
            "base": model.base,
            "source": model.source,
            "lineage": json.dumps(model.lineage),
            **file_facts(model.files),
        }

        def work(db: sa.Connection) -> RegisteredModel:
            serialize(db, "registry")
            known = _exact(db, model.id)
            if known is not None:
                if "local" not in (owner, known.owner):
                    _require_owner(known.owner, owner, f"The model {known.id}")
                if known.source == model.source and model.files is None:  # its digest is still valid
                    for each in ("files", "digest", "bytes"):
                        del values[each]
                if known.owner == "local":  # the job's own key may come later
                    values["owner"] = owner
                db.execute(sa.update(registry).where(_columns.id == model.id), values)
            else:
                _check_free(db, model.name, owner)
                own = {
                    "id": model.id,
                    "name": model.name,
                    "owner": owner,
                    "job": model.job,
                    "step": model.step,
                }
                stage = {"stage": "candidate", "created": microseconds()}
                db.execute(sa.insert(registry), own | values | stage)
            found = _exact(db, model.id)
            assert found is not None
            return found

        return self.store.write(work)

    async def add_of_job(self, model: NewModel, owner: str) -> RegisteredModel:
        """Registers a model of a job, under the job's hash if another key has its name. A job with the hash of a
        registered one, such as that of another key, adds its name to the model."""
        try:
            row = await self.add(model, owner)
        except Forbidden:
            row = await self.find(model.id)
        except Conflict:
            return await self.add(replace(model, name=model.job[:SHORT]), owner)
        if row.name != model.name != model.job[:SHORT]:
            with suppress(Conflict, Forbidden, InvalidRequest):  # the name stands for another model
                await self.point(model.name, row.id, owner)
        return row

    def note(self, id: str, files: dict[str, tuple[int, str]], **facts: Any) -> Pending[None]:
        """Records the files of a model, whose hashes take long to compute."""
        change = sa.update(registry).where(_columns.id == id).values(**file_facts(files), **facts)

        def work(db: sa.Connection) -> None:
            db.execute(change)

        return self.store.write(work)

    def all(
        self,
        *,
        name: str | None = None,
        job: str | None = None,
        kind: str | None = None,
        stage: str | None = None,
        after: str | None = None,
        limit: int | None = 100,
    ) -> Pending[list[RegisteredModel]]:
        """The newest first; only those registered before the model `after`."""
        wanted = sa.select(*_ROW).order_by(_columns.number.desc()).limit(limit)
        given = {"name": name, "job": job, "kind": kind, "stage": stage}
        wanted = wanted.where(
            *(registry.c[key] == value for key, value in given.items() if value is not None)
        )

        def work(db: sa.Connection) -> list[RegisteredModel]:
            older = wanted
            if after is not None:
                older = wanted.where(_columns.number < _found(db, after).number)
            return [RegisteredModel(*row) for row in db.execute(older)]

        return self.store.read(work)

    def find(self, name: str) -> Pending[RegisteredModel]:
        """The model that an alias, a name, `latest`, a hash, or a prefix of a hash stands for, with `@STEP` for a
        checkpoint."""
        return self.store.read(lambda db: _found(db, name))

    def stamp(self) -> Pending[tuple[int | None, ...]]:
        """Changes with every change of a name."""
        return self.store.read(_stamp)

    def snapshot(self) -> Pending[tuple[tuple[int | None, ...], dict[str, str], dict[str, str]]]:
        """The stamp, ids by every name that stands for one (aliases, names, `latest`), and sources by id."""

        def work(db: sa.Connection) -> tuple[tuple[int | None, ...], dict[str, str], dict[str, str]]:
            wanted = sa.select(_columns.id, _columns.name, _columns.kind, _columns.source)
            found, sources = {}, {}
            for row in db.execute(wanted.order_by(_columns.number)):  # the newest is the last
                sources[row.id] = row.source
                if row.kind != "reward":
                    found[row.name] = found[LATEST] = row.id
            changes = sa.select(_aliases.alias, _aliases.model).order_by(_aliases.number)
            found |= {row.alias: row.model for row in db.execute(changes)}
            return _stamp(db), found, sources

        return self.store.read(work)

    def unhashed(self, after: int = 0, limit: int = 10) -> Pending[list[RegisteredModel]]:
        """Models beyond the number `after` whose files were not hashed yet, in order; checkpoints are verified by their
        own manifests."""
        wanted = sa.select(*_ROW).where(
            _columns.digest.is_(None), _columns.step.is_(None), _columns.number > after
        )
        wanted = wanted.order_by(_columns.number).limit(limit)
        return self.store.read(lambda db: [RegisteredModel(*row) for row in db.execute(wanted)])

    def aliases(self) -> Pending[list[Alias]]:
        def work(db: sa.Connection) -> list[Alias]:
            wanted = sa.select(registry_aliases).order_by(_aliases.number)
            found: dict[str, Alias] = {}
            for row in db.execute(wanted):
                before = found.get(row.alias)
                previous = () if before is None else (before.model, *before.previous)
                found[row.alias] = Alias(row.alias, row.model, row.owner, row.promoted, row.created, previous)
            return sorted(found.values(), key=lambda each: each.alias)

        return self.store.read(work)

    def point(self, alias: str, model: str, owner: str | None) -> Pending[RegisteredModel]:
        """Points an alias at a model. Without `owner`, an admin's."""
        check_name(alias, "alias")

        def work(db: sa.Connection) -> RegisteredModel:
            serialize(db, "registry")
            found = _found(db, model)
            same = sa.select(_columns.id).where(_columns.name == alias).limit(1)
            if db.execute(same).first() is not None:
                raise Conflict(
                    f"{alias!r} is the name of a model: promote one of its versions, or choose another alias.",
                    param="alias",
                    code="name_is_taken",
                )
            _point(db, alias, found, owner, promoted=False)
            return found

        return self.store.write(work)

    def promote(self, model: str, owner: str | None) -> Pending[RegisteredModel]:
        """Makes the model the one that its name stands for; the one before is archived."""

        def work(db: sa.Connection) -> RegisteredModel:
            serialize(db, "registry")
            found = _found(db, model)
            _require_owner(found.owner, owner, f"The model {found.id}")
            _point(db, found.name, found, owner, promoted=True)
            return _staged(db, found)

        return self.store.write(work)

    def rollback(self, name: str, owner: str | None) -> Pending[RegisteredModel]:
        """Returns a name or an alias to the model that it stood for before."""

        def work(db: sa.Connection) -> RegisteredModel:
            serialize(db, "registry")
            rows = list(
                db.execute(
                    sa.select(registry_aliases).where(_aliases.alias == name).order_by(_aliases.number.desc())
                )
            )
            if not rows:
                raise NotFound(
                    f"No model of the name {name!r} was promoted.", param="model", code="not_promoted"
                )
            _require_owner(rows[0].owner, owner, f"The name {name!r}")
            if len(rows) < 2:
                raise Conflict(
                    f"{name!r} stood for no other model before: promote one.",
                    param="model",
                    code="no_previous",
                )
            db.execute(sa.delete(registry_aliases).where(_aliases.number == rows[0].number))
            found = _exact(db, rows[1].model)
            assert found is not None  # of a foreign key
            return _staged(db, found) if rows[1].promoted else found

        return self.store.write(work)

    def drop_alias(self, alias: str, owner: str | None) -> Pending[None]:
        """Removes an alias, or the promotion of a name."""

        def work(db: sa.Connection) -> None:
            current = _current(db, alias)
            if current is None:
                raise NotFound(f"There is no alias {alias!r}.", param="alias", code="alias_not_found")
            _require_owner(current.owner, owner, f"The alias {alias!r}")
            db.execute(sa.delete(registry_aliases).where(_aliases.alias == alias))
            promoted = sa.update(registry).where(_columns.name == alias, _columns.stage == "production")
            db.execute(promoted.values(stage="candidate"))

        return self.store.write(work)

    def remove(self, model: str, owner: str | None) -> Pending[RegisteredModel]:
        """Removes a row, which must not be the target of an alias."""

        def work(db: sa.Connection) -> RegisteredModel:
            serialize(db, "registry")
            found = _found(db, model)
            _require_owner(found.owner, owner, f"The model {found.id}")
            _remove(db, found)
            return found

        return self.store.write(work)

    def remove_result(self, id: str, name: str, others: Collection[str]) -> Pending[bool]:
        """Ends the name of a job's result, which may be an alias; one of `others`, the results of further jobs with the
        same hash, replaces the model's own name. Whether the row was removed, because there are no others."""

        def work(db: sa.Connection) -> bool:
            serialize(db, "registry")
            found = _exact(db, id)
            if found is None:
                return True
            pointing = _pointing(db, id)
            if name in pointing and not pointing[name].promoted:
                db.execute(sa.delete(registry_aliases).where(_aliases.alias == name))
            elif found.name == name and others:
                further = sorted(each for each in pointing if each in others)
                if not further or name in pointing:
                    _remove(db, found)
                    return True
                db.execute(sa.delete(registry_aliases).where(_aliases.alias == further[0]))
                values = {"name": further[0], "owner": pointing[further[0]].owner}
                db.execute(sa.update(registry).where(_columns.id == id).values(**values))
            if not others:
                _remove(db, found)
            return not others

        return self.store.write(work)


def file_facts(files: dict[str, tuple[int, str]] | None) -> dict[str, Any]:
    """Columns that follow from the files."""
    if files is None:
        return {"files": None, "digest": None, "bytes": None}
    digest = sha256_json({name: sha256 for name, (_, sha256) in files.items()})
    total = sum(size for size, _ in files.values())
    return {"files": json.dumps(files), "digest": digest, "bytes": total}


def _stamp(db: sa.Connection) -> tuple[int | None, ...]:
    def of(number: sa.ColumnElement[int]) -> tuple[int | None, ...]:
        return tuple(db.execute(sa.select(sa.func.max(number), sa.func.count())).one())

    return (*of(_columns.number), *of(_aliases.number))


def _exact(db: sa.Connection, id: str) -> RegisteredModel | None:
    row = db.execute(sa.select(*_ROW).where(_columns.id == id)).first()
    return None if row is None else RegisteredModel(*row)


def _pointing(db: sa.Connection, id: str) -> dict[str, Any]:
    """Newest rows of the aliases that stand for the model."""
    names = db.execute(sa.select(_aliases.alias).where(_aliases.model == id).distinct()).scalars()
    found = {alias: _current(db, alias) for alias in list(names)}
    return {alias: row for alias, row in found.items() if row.model == id}


def _remove(db: sa.Connection, model: RegisteredModel) -> None:
    for alias in _pointing(db, model.id):
        raise Conflict(
            f"The model {model.id} answers as {alias!r}: promote another one, or delete the alias.",
            param="model",
            code="model_in_use",
        )
    db.execute(sa.delete(registry_aliases).where(_aliases.model == model.id))
    db.execute(sa.delete(registry).where(_columns.id == model.id))


def _current(db: sa.Connection, alias: str) -> Any:
    newest = sa.select(registry_aliases).where(_aliases.alias == alias).order_by(_aliases.number.desc())
    return db.execute(newest.limit(1)).first()


def _found(db: sa.Connection, name: str) -> RegisteredModel:
    match = CHECKPOINT.fullmatch(name)
    wanted, step = (match["model"], int(match["step"])) if match else (name, None)
    current = _current(db, name)
    found = _exact(db, name) if current is None else _exact(db, current.model)
    if found is None:
        for condition in _conditions(wanted, step):
            rows = db.execute(
                sa.select(*_ROW).where(condition).order_by(_columns.number.desc()).limit(2)
            ).all()
            if rows and wanted not in (LATEST, rows[0].name) and len({row.job for row in rows}) > 1:
                raise InvalidRequest(
                    f"Several models begin with {wanted!r}: give more characters.", param="model"
                )
            if rows:
                return RegisteredModel(*rows[0])
        raise NotFound(
            f"The registry has no model {name[:200]!r}: `rondo registry list` lists the models.",
            param="model",
            code="model_not_found",
        )
    return found


def _conditions(wanted: str, step: int | None) -> list[sa.ColumnElement[bool]]:
    at = sa.true() if step is None else _columns.step == step
    final = _columns.step.is_(None) if step is None else _columns.step == step
    if wanted == LATEST:
        return [sa.and_(_ANSWERING, at)]
    found: list[sa.ColumnElement[bool]] = [sa.and_(_columns.name == wanted, at)]
    if step is not None:
        found.insert(0, _columns.name == checkpoint_name(wanted, step))
    if HASH.fullmatch(wanted):
        found.append(sa.and_(_columns.job.startswith(wanted.lower()), final))
    return found


def _check_free(db: sa.Connection, name: str, owner: str) -> None:
    first = sa.select(_columns.owner).where(_columns.name == name).order_by(_columns.number).limit(1)
    row = db.execute(first).first()
    if row is not None and row.owner != owner and owner != "local":
        raise Conflict(
            f"The name {name!r} belongs to another key: choose another.", param="name", code="name_is_taken"
        )
    if row is None and _current(db, name) is not None:
        raise Conflict(f"{name!r} is an alias: choose another name.", param="name", code="name_is_taken")


def _require_owner(has: str, owner: str | None, what: str) -> None:
    if owner is not None and has != owner:
        raise Forbidden(f"{what} belongs to another key.", param="model", code="not_owner")


def _point(
    db: sa.Connection, alias: str, model: RegisteredModel, owner: str | None, *, promoted: bool
) -> None:
    current = _current(db, alias)
    if current is not None:
        _require_owner(current.owner, owner, f"The alias {alias!r}")
        if current.model == model.id:
            return
    values = {"alias": alias, "model": model.id, "promoted": promoted, "created": microseconds()}
    db.execute(sa.insert(registry_aliases), values | {"owner": owner or model.owner})


def _staged(db: sa.Connection, model: RegisteredModel) -> RegisteredModel:
    """The model in production; the one before is archived."""
    others = sa.update(registry).where(_columns.name == model.name, _columns.stage == "production")
    db.execute(others.values(stage="archived"))
    db.execute(sa.update(registry).where(_columns.id == model.id).values(stage="production"))
    return replace(model, stage="production")
