"""The one statement that SQLAlchemy has a class per database for."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert(dialect: str, table: sa.Table) -> sqlite.Insert:
    """An INSERT with `on_conflict_do_update`, which both databases spell alike."""
    own: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement: sqlite.Insert = own(table)
    return statement
