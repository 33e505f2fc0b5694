"""Who may ask for what. A key is shown once, when it is made; the store has its digest."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rondo.base.errors import ConfigError, Forbidden, NotFound, Unauthorized
from rondo.control.store import Store

Role = Literal["admin", "user", "worker"]
"""`admin`: everything. `user`: what its scopes say, and what is its own. `worker`: taking work and handing it in."""
Scope = Literal["inference", "files", "batches", "jobs", "queue"]

FORM = re.compile(r"rk-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
COLUMNS = (
    "id, name, role, scopes, models, requests_per_minute, tokens_per_minute, tokens_per_day, "
    "created, expires, revoked"
)
WRONG = "Incorrect API key provided. Send a key as `Authorization: Bearer rk-...`; an admin can make one."


@dataclass(frozen=True)
class Rights:
    """What a key is made with. No `models`: all of them. None: no limit."""

    role: Role = "user"
    scopes: tuple[Scope, ...] = get_args(Scope)
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    expires: float | None = None


@dataclass(frozen=True)
class Key:
    id: str
    name: str
    rights: Rights
    created: float
    revoked: float | None = None

    def may(self, scope: Scope) -> None:
        """Raises `Forbidden` where it may not."""
        rights = self.rights
        if rights.role != "admin" and (rights.role == "worker" or scope not in rights.scopes):
            raise Forbidden(
                f"The key {self.name!r} may not use {scope}: ask an admin for one that may.",
                code="scope_missing",
            )

    def may_use(self, model: str) -> None:
        if self.rights.models and model not in self.rights.models:
            raise Forbidden(
                f"The key {self.name!r} may not use the model {model!r}, only {', '.join(self.rights.models)}.",
                param="model",
                code="model_not_allowed",
            )


@dataclass(frozen=True)
class Usage:
    day: str
    model: str
    requests: int
    input_tokens: int
    output_tokens: int


class Keys:
    def __init__(self, store: Store) -> None:
        self.store = store

    def make(self, name: str, rights: Rights = Rights()) -> tuple[Key, str]:
        """The key, and its text, which cannot be had again."""
        _check(name, rights)
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = Key(id, name, rights, time.time())
        self.store.write(lambda db: _insert(db, key, _digest(secret)))
        return key, f"rk-{id}-{secret}"

    def make_first(self) -> str | None:
        """The text of an admin's key, if there is no key yet."""
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        key = Key(id, "first admin", Rights("admin"), time.time())

        def work(db: sqlite3.Connection) -> bool:
            if db.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None:
                return False
            _insert(db, key, _digest(secret))
            return True

        return f"rk-{id}-{secret}" if self.store.write(work) else None

    def find(self, text: str | None) -> Key:
        """Whose text it is. A revoked key, or one that has run out, is told so: who has it had it rightly."""
        if not text:
            raise Unauthorized(
                "You didn't provide an API key. Send one as `Authorization: Bearer rk-...`.",
                code="missing_api_key",
            )
        parts = FORM.fullmatch(text)
        row = None
        if parts is not None:
            row = self.store.read(
                lambda db: db.execute(
                    f"SELECT {COLUMNS}, digest FROM keys WHERE id = ?", (parts[1],)
                ).fetchone()
            )
        if parts is None or row is None or not hmac.compare_digest(row[-1], _digest(parts[2])):
            raise Unauthorized(WRONG, code="invalid_api_key")
        key = _as_key(row[:-1])
        if key.revoked is not None:
            raise Unauthorized(f"The key {key.name!r} has been revoked.", code="revoked_api_key")
        if key.rights.expires is not None and key.rights.expires <= time.time():
            raise Unauthorized(f"The key {key.name!r} has run out.", code="expired_api_key")
        return key

    def revoke(self, id: str) -> Key:
        def work(db: sqlite3.Connection) -> Key:
            db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (time.time(), id))
            row = db.execute(f"SELECT {COLUMNS} FROM keys WHERE id = ?", (id,)).fetchone()
            if row is None:
                raise NotFound(f"there is no key {id!r}", param="id")
            return _as_key(row)

        return self.store.write(work)

    def all(self) -> list[Key]:
        rows = self.store.read(
            lambda db: db.execute(f"SELECT {COLUMNS} FROM keys ORDER BY created").fetchall()
        )
        return [_as_key(row) for row in rows]

    def used(self, key: str, model: str, requests: int, input_tokens: int, output_tokens: int) -> None:
        """Adds to the day's usage; nobody waits for it."""
        values = (key, time.strftime("%Y-%m-%d", time.gmtime()), model, requests, input_tokens, output_tokens)

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO usage (key, day, model, requests, input_tokens, output_tokens) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (key, day, model) DO UPDATE SET requests = requests + excluded.requests, "
                "input_tokens = input_tokens + excluded.input_tokens, "
                "output_tokens = output_tokens + excluded.output_tokens",
                values,
            )

        self.store.submit(work)

    def usage(self, key: str, since: str = "") -> list[Usage]:
        """By day (UTC) and model, from the day `since` on."""
        text = (
            "SELECT day, model, requests, input_tokens, output_tokens FROM usage "
            "WHERE key = ? AND day >= ? ORDER BY day, model"
        )
        return self.store.read(lambda db: [Usage(*row) for row in db.execute(text, (key, since))])


def _check(name: str, rights: Rights) -> None:
    if not name or len(name) > 100 or not name.isprintable():
        raise ConfigError("name is 1 to 100 characters that can be printed", param="name")
    if rights.role not in get_args(Role):
        raise ConfigError(f"role is one of {', '.join(get_args(Role))}, not {rights.role!r}", param="role")
    if wrong := [scope for scope in rights.scopes if scope not in get_args(Scope)]:
        raise ConfigError(f"scopes are of {', '.join(get_args(Scope))}, not {wrong[0]!r}", param="scopes")
    for limit in ("requests_per_minute", "tokens_per_minute", "tokens_per_day"):
        if (value := getattr(rights, limit)) is not None and value < 1:
            raise ConfigError(
                f"{limit} is at least 1: leave it out for no limit, revoke the key for none", param=limit
            )
    if any("," in model for model in rights.models):
        raise ConfigError("a model's name has no comma", param="models")


def _digest(secret: str) -> str:
    """Of 256 random bits: nobody guesses them, so a slow hash would only slow the requests."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _insert(db: sqlite3.Connection, key: Key, digest: str) -> None:
    rights = key.rights
    limits = (rights.requests_per_minute, rights.tokens_per_minute, rights.tokens_per_day)
    lists = (",".join(rights.scopes), ",".join(rights.models))
    db.execute(
        f"INSERT INTO keys ({COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (key.id, key.name, rights.role, *lists, *limits, key.created, rights.expires, key.revoked, digest),
    )


def _as_key(row: Sequence[Any]) -> Key:
    id, name, role, scopes, models, requests, tokens, per_day, created, expires, revoked = row
    rights = Rights(role, _listed(scopes), _listed(models), requests, tokens, per_day, expires)
    return Key(id, name, rights, created, revoked)


def _listed(text: str) -> tuple[Any, ...]:
    return tuple(text.split(",")) if text else ()
