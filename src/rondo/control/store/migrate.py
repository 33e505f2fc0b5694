"""Bring the tables to the newest revision, or refuse a store of a newer version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict
from rondo.control import migrations
from rondo.control.tables import metadata

ADVISORY_LOCK = 0x526F6E646F  # "Rondo"
FOLDER = Path(migrations.__file__).parent
VERSIONS: Sequence[Path] = (FOLDER / "versions",)


def revision(db: sa.Connection) -> str | None:
    """The store's revision; None for a store without tables."""
    if not sa.inspect(db).has_table("alembic_version"):
        return None
    return db.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(db: sa.Connection, name: str) -> str | None:
    """Applies missing steps within the caller's transaction, all or none. Returns the revision before.

    The caller's transaction excludes other processes on SQLite; on PostgreSQL an advisory lock does.
    """
    if db.dialect.name == "postgresql":
        db.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    before, head = revision(db), migrations.HEAD
    if before == head:
        return before
    if before is None and (there := set(sa.inspect(db).get_table_names()) & set(metadata.tables)):
        raise Conflict(
            f"{name} has a table {min(there)!r} that Rondo did not create: use an empty database, or another "
            "RONDO_HOME or RONDO_STORE_URL."
        )
    from alembic import command  # 0.2 s, for a store that is not current alone
    from alembic.script import ScriptDirectory

    config = _config(db)
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    if before is not None and before not in known:
        raise Conflict(
            f"{name} was written by a newer version of Rondo: its tables have revision {before}, the newest known "
            f"here is {head}. Install that version, or use another RONDO_HOME or RONDO_STORE_URL."
        )
    command.upgrade(config, head)
    return before


def _config(db: sa.Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option(
        "version_locations", "\n".join(str(folder).replace("%", "%%") for folder in VERSIONS)
    )
    config.attributes["connection"] = db
    return config
