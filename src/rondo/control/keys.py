"""API keys in the store. A key's text is shown once, when it is created; the store has a digest of its secret."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, NotFound, Unauthorized
from rondo.control import tables
from rondo.control.key import Key, Rights, Role, check
from rondo.control.store.clock import microseconds
from rondo.control.store.duty import serialize
from rondo.control.store.pending import Pending, failed
from rondo.control.store.store import Store

PREFIX = "rk-"
FORM = re.compile(r"rk-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
UNLIMITED = Rights()
WRONG = "Incorrect API key provided. Send a key as `Authorization: Bearer rk-...`; an admin can make one."

_columns = tables.keys.c
KEY = (
    _columns.id,
    _columns.name,
    _columns.role,
    _columns.scopes,
    _columns.models,
    _columns.requests_per_minute,
    _columns.tokens_per_minute,
    _columns.tokens_per_day,
    _columns.created,
    _columns.expires,
    _columns.revoked,
    _columns.service_tier,
)
LOCAL = Key("local", "local", Rights("admin"), 0)
"""Identity of requests without a key, where keys are optional."""
_FIND = sa.select(*KEY, _columns.parent, _columns.digest).where(_columns.id == sa.bindparam("wanted"))
_REVOKE = (
    sa.update(tables.keys)
    .where(_columns.id == sa.bindparam("wanted"), _columns.revoked.is_(None))
    .values(revoked=sa.bindparam("now"))
)


class Keys:
    def __init__(self, store: Store) -> None:
        self.store = store

    def make(self, name: str, rights: Rights = UNLIMITED) -> Pending[tuple[Key, str]]:
        """The key and its text, which cannot be shown again."""
        check(name, rights)
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = Key(id, name, rights, microseconds())

        def work(db: sa.Connection) -> tuple[Key, str]:
            _insert(db, key, _digest(secret))
            return key, f"rk-{id}-{secret}"

        return self.store.write(work)

    def make_first(self) -> Pending[str | None]:
        """The text of an admin's key, unless a key exists."""
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = Key(id, "first admin", Rights("admin"), microseconds())

        def work(db: sa.Connection) -> str | None:
            serialize(db, "first key")
            if db.execute(sa.select(_columns.id).limit(1)).first() is not None:
                return None
            _insert(db, key, _digest(secret))
            return f"rk-{id}-{secret}"

        return self.store.write(work)

    def find(self, text: str | None) -> Pending[Key]:
        """The key with this text. An error for a revoked or expired key names the key: its holder had it rightly."""
        if not text:
            return failed(
                Unauthorized(
                    "You didn't provide an API key. Send one as `Authorization: Bearer rk-...`.",
                    code="missing_api_key",
                )
            )
        parts = FORM.fullmatch(text)
        if parts is None:
            return failed(Unauthorized(WRONG, code="invalid_api_key"))
        id, secret = parts[1], parts[2]

        def work(db: sa.Connection) -> Key:
            row = db.execute(_FIND, {"wanted": id}).first()
            if row is None or not hmac.compare_digest(row[-1], _digest(secret)):
                raise Unauthorized(WRONG, code="invalid_api_key")
            key = _valid(_as_key(row[:-2]))
            return key if row.parent is None else replace(_key(db, row.parent), rights=key.rights)

        return self.store.read(work)

    def delegate(self, owner: str, name: str) -> Pending[str]:
        """Text of a key that acts for the owner's key within inference alone, as long as the owner's is valid. It
        replaces the one of the same name."""
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)

        def work(db: sa.Connection) -> str:
            parent = _key(db, owner)
            role: Role = "user" if parent.rights.role == "admin" else parent.rights.role
            rights = replace(parent.rights, role=role, scopes=("inference",))
            db.execute(sa.delete(tables.keys).where(*_delegated(name)))
            _insert(db, Key(id, name, rights, microseconds()), _digest(secret), owner)
            return f"rk-{id}-{secret}"

        return self.store.write(work)

    def end_delegation(self, name: str) -> Pending[None]:
        def work(db: sa.Connection) -> None:
            db.execute(sa.delete(tables.keys).where(*_delegated(name)))

        return self.store.write(work)

    def get(self, id: str) -> Pending[Key]:
        """The key with this id, if it may still be used."""

        def work(db: sa.Connection) -> Key:
            return _key(db, id)

        return self.store.read(work)

    def permit(self, ids: Sequence[str], model: str) -> Pending[None]:
        """Adds a model to the allowed models of each key. A key without such a list may use every model already."""

        def work(db: sa.Connection) -> None:
            for id in ids:
                key = _key(db, id)
                if not key.rights.models:
                    raise Conflict(f"The key {id!r} may use every model already.", param="project_ids")
                _set_models(db, id, (*(each for each in key.rights.models if each != model), model))

        return self.store.write(work)

    def forbid(self, id: str, model: str) -> Pending[bool]:
        """Removes a model from the allowed models of a key; whether it was among them."""

        def work(db: sa.Connection) -> bool:
            models = _key(db, id).rights.models
            if model not in models:
                return False
            if len(models) == 1:
                raise Conflict(
                    f"{model} is the only model of the key {id!r}: revoke the key.", param="permission_id"
                )
            _set_models(db, id, tuple(each for each in models if each != model))
            return True

        return self.store.write(work)

    def revoke(self, id: str) -> Pending[Key]:
        def work(db: sa.Connection) -> Key:
            db.execute(_REVOKE, {"wanted": id, "now": microseconds()})
            row = db.execute(_FIND, {"wanted": id}).first()
            if row is None:
                raise NotFound(f"there is no key {id!r}", param="id")
            return _as_key(row[:-2])

        return self.store.write(work)

    def all(self) -> Pending[list[Key]]:
        wanted = sa.select(*KEY).where(_columns.parent.is_(None)).order_by(_columns.created, _columns.id)
        return self.store.read(lambda db: [_as_key(row) for row in db.execute(wanted)])


def _key(db: sa.Connection, id: str) -> Key:
    if id == LOCAL.id:
        return LOCAL
    row = db.execute(_FIND, {"wanted": id}).first()
    if row is None:
        raise NotFound(f"there is no key {id!r}", param="id")
    return _valid(_as_key(row[:-2]))


def _set_models(db: sa.Connection, id: str, models: tuple[str, ...]) -> None:
    db.execute(sa.update(tables.keys).where(_columns.id == id).values(models=",".join(models)))


def _delegated(name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _columns.name == name, _columns.parent.is_not(None)


def _valid(key: Key) -> Key:
    if key.revoked is not None:
        raise Unauthorized(f"The key {key.name!r} has been revoked.", code="revoked_api_key")
    if key.rights.expires is not None and key.rights.expires <= microseconds():
        raise Unauthorized(f"The key {key.name!r} has expired.", code="expired_api_key")
    return key


def _digest(secret: str) -> str:
    """Of 256 random bits, which cannot be guessed: a slow hash would only delay requests."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _insert(db: sa.Connection, key: Key, digest: str, parent: str | None = None) -> None:
    rights = key.rights
    values = {
        "id": key.id,
        "digest": digest,
        "name": key.name,
        "role": rights.role,
        "scopes": ",".join(rights.scopes),
        "models": ",".join(rights.models),
        "requests_per_minute": rights.requests_per_minute,
        "tokens_per_minute": rights.tokens_per_minute,
        "tokens_per_day": rights.tokens_per_day,
        "created": key.created,
        "expires": rights.expires,
        "revoked": key.revoked,
        "service_tier": rights.service_tier,
        "parent": parent,
    }
    db.execute(sa.insert(tables.keys), values)


def _as_key(row: Sequence[Any]) -> Key:
    id, name, role, scopes, models, requests, tokens, per_day, created, expires, revoked, tier = row
    rights = Rights(role, _listed(scopes), _listed(models), requests, tokens, per_day, expires, tier)
    return Key(id, name, rights, created, revoked)


def _listed(text: str) -> tuple[Any, ...]:
    return tuple(text.split(",")) if text else ()
