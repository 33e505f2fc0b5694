"""`rondo keys create|list|revoke|usage`: API keys of the gateway, in its store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.control.store.store import Store

USAGE = """usage: rondo keys VERB [options]

  create   create a key and print its text once: rondo keys create NAME
  list     list keys with their rights
  revoke   refuse a key from now on: rondo keys revoke ID
  usage    requests and tokens by key, day and model

Keys are kept in the gateway's store: RONDO_HOME/rondo.db, or the database in RONDO_STORE_URL.

  rondo keys VERB --help   what a verb takes"""

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
SECOND = 1_000_000


def run(argv: list[str]) -> int:
    return run_verb("rondo keys", VERBS, USAGE, argv)


def _create(argv: list[str]) -> int:
    parser = VerbParser("rondo keys create", "Create an API key and print its text, which is shown once.")
    parser.add_argument("name", metavar="NAME", help="name of the holder, for lists and errors")
    parser.add_argument("--role", default="user", help="user (default), admin or worker")
    parser.add_argument(
        "--scopes", help="scopes, with commas: inference,files,batches,jobs,queue (default: these), code"
    )
    parser.add_argument(
        "--models", default="", help="models that the key may use, with commas (default: all)"
    )
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="rate limit of requests")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="rate limit of tokens")
    parser.add_argument("--tokens-per-day", type=int, metavar="N", help="daily quota of tokens (UTC)")
    parser.add_argument("--expires", metavar="TIME", help="life of the key: 12h, 30d")
    parser.add_argument(
        "--service-tier",
        default="default",
        metavar="TIER",
        help="highest priority band of its requests in the gateway's queue: priority, default or flex",
    )
    given = parser.parse_args(argv)
    with _store() as store:
        from rondo.control.key import Rights
        from rondo.control.keys import Keys

        rights = Rights(
            given.role,
            Rights().scopes if given.scopes is None else _list(given.scopes),
            _list(given.models),
            given.requests_per_minute,
            given.tokens_per_minute,
            given.tokens_per_day,
            None if given.expires is None else int((time.time() + _seconds(given.expires)) * SECOND),
            given.service_tier,
        )
        _, text = Keys(store).make(given.name, rights).result()
    print(text)
    return 0


def _show(argv: list[str]) -> int:
    VerbParser("rondo keys list", "List keys with their rights.").parse_args(argv)
    with _store() as store:
        from rondo.control.key import SCOPES, TIERS
        from rondo.control.keys import Keys

        keys = Keys(store).all().result()
    rows: list[tuple[str, ...]] = [("ID", "NAME", "ROLE", "STATE", "SCOPES", "MODELS", "TIER", "LIMITS")]
    for key in keys:
        rights = key.rights
        limits = (
            (rights.requests_per_minute, "req/min"),
            (rights.tokens_per_minute, "tok/min"),
            (rights.tokens_per_day, "tok/day"),
        )
        shown = ", ".join(f"{number:,} {unit}" for number, unit in limits if number is not None)
        own = "default" if rights.scopes == SCOPES else ",".join(rights.scopes) or "none"
        scopes = {"admin": "all", "worker": "none"}.get(rights.role, own)
        models = ",".join(rights.models) or "all"
        tier = TIERS[0] if rights.role == "admin" else rights.service_tier
        rows.append((key.id, key.name, rights.role, _state(key), scopes, models, tier, shown or "none"))
    print("\n".join(aligned(rows)))
    return 0


def _revoke(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo keys revoke", "Refuse a key from now on. A running gateway follows within seconds."
    )
    parser.add_argument("id", metavar="ID", help="the key's id, from `rondo keys list`")
    id: str = parser.parse_args(argv).id
    with _store() as store:
        from rondo.control.keys import Keys

        key = Keys(store).revoke(id).result()
    print(f"The key {key.name!r} ({key.id}) is revoked.")
    return 0


def _usage(argv: list[str]) -> int:
    parser = VerbParser("rondo keys usage", "Requests and tokens by key, day and model.")
    parser.add_argument("--since", default="", metavar="DAY", help="first day, as YYYY-MM-DD (UTC)")
    since: str = parser.parse_args(argv).since
    rows: list[tuple[str, ...]] = [("KEY", "DAY", "MODEL", "REQUESTS", "INPUT", "OUTPUT")]
    with _store() as store:
        from rondo.control.keys import Keys
        from rondo.control.usage import UsageLog

        log = UsageLog(store)
        names = {"local": "local"} | {key.id: key.name for key in Keys(store).all().result()}
        for id, name in names.items():
            for row in log.usage(id, since).result():
                numbers = (f"{number:,}" for number in (row.requests, row.input_tokens, row.output_tokens))
                rows.append((name, row.day, row.model, *numbers))
    print("\n".join(aligned(rows)))
    return 0


@contextmanager
def _store() -> Iterator[Store]:
    from rondo.control.store.store import Store

    store = Store()
    try:
        yield store
    finally:
        store.close()


def _state(key: Any) -> str:
    if key.revoked is not None:
        return "revoked"
    expires = key.rights.expires
    if expires is None:
        return "valid"
    return (
        "expired"
        if expires <= time.time() * SECOND
        else time.strftime("to %Y-%m-%d", time.gmtime(expires / SECOND))
    )


def _seconds(text: str) -> float:
    try:
        return float(text[:-1]) * SECONDS[text[-1:]]
    except (ValueError, KeyError):
        raise ConfigError(
            f"--expires is a time such as 12h or 30d, not {text!r}.", param="--expires"
        ) from None


def _list(text: str) -> tuple[Any, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


VERBS = {"create": _create, "list": _show, "revoke": _revoke, "usage": _usage}
