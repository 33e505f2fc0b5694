"""`rondo db upgrade|backup|restore|check`: the store of the gateway, in SQLite or PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from rondo.base.errors import ConfigError, StorageError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb

USAGE = """usage: rondo db VERB [options]

  upgrade  create missing tables and apply missing migrations
  backup   copy the store to a file while it is in use: rondo db backup FILE
  restore  replace the store by a backup: rondo db restore FILE
  check    verify the file and the counters

The store is RONDO_HOME/rondo.db, or the database in RONDO_STORE_URL: postgresql://USER@HOST/DATABASE.

  rondo db VERB --help   what a verb takes"""


def run(argv: list[str]) -> int:
    return run_verb("rondo db", VERBS, USAGE, argv)


def _upgrade(argv: list[str]) -> int:
    _parser("upgrade", "Create missing tables and apply missing migrations.").parse_args(argv)
    from rondo.control.migrations import HEAD
    from rondo.control.store.store import Store

    store = Store()  # upgrades as it opens
    before, name = store.database.before, store.name
    store.close()
    change = (
        f"is at revision {HEAD} already" if before == HEAD else f"upgraded from {before or 'empty'} to {HEAD}"
    )
    print(f"{name} {change}.")
    return 0


def _backup(argv: list[str]) -> int:
    parser = _parser("backup", "Copy the store to a file, as of one moment, while it is in use.")
    parser.add_argument("file", metavar="FILE", type=Path)
    to: Path = parser.parse_args(argv).file
    from rondo.control.store.files import backup

    backup(_file("back up", "pg_dump --format=custom --file=FILE"), to)
    print(f"Wrote {to}.")
    return 0


def _restore(argv: list[str]) -> int:
    parser = _parser(
        "restore", "Replace the store by a backup. Stop the gateway first; the old file is kept."
    )
    parser.add_argument("file", metavar="FILE", type=Path)
    source: Path = parser.parse_args(argv).file
    path = _file("restore", "pg_restore --clean --if-exists --dbname=DATABASE FILE")
    from rondo.control.store.files import restore
    from rondo.control.store.store import Store

    replaced = restore(source, path)
    Store(path).close()  # applies migrations that are newer than the backup
    print(f"Restored {path} from {source}." + (f" The old file is {replaced}." if replaced else ""))
    return 0


def _check(argv: list[str]) -> int:
    _parser("check", "Verify the file's integrity, the revision of the tables and the counters.").parse_args(
        argv
    )
    from rondo.control.migrations import HEAD
    from rondo.control.store.check import problems
    from rondo.control.store.files import integrity
    from rondo.control.store.store import Store, place_of

    place = place_of(None)
    if isinstance(place, Path) and (broken := integrity(place)):
        raise StorageError(
            f"{place} is damaged ({broken[0]}): restore a backup with `rondo db restore FILE`."
        )
    store = Store(place)
    try:
        found = store.read(problems).result()
    finally:
        store.close()
    if found:
        raise StorageError(f"{store.name} is inconsistent: {'; '.join(found)}. Restore a backup.")
    print(f"{store.name} is sound, at revision {HEAD}.")
    return 0


def _file(action: str, instead: str) -> Path:
    from rondo.control.store.store import place_of

    place = place_of(None)
    if isinstance(place, Path):
        return place
    raise ConfigError(
        f"Rondo cannot {action} PostgreSQL: use its own tool, `{instead}`.", param="RONDO_STORE_URL"
    )


def _parser(verb: str, description: str) -> VerbParser:
    return VerbParser(f"rondo db {verb}", description)


VERBS = {"upgrade": _upgrade, "backup": _backup, "restore": _restore, "check": _check}
