"""Indexes of dead letters and of groups that are not sealed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    where = sa.text("state = 'dead'")
    op.create_index("requests_dead", "requests", ["id"], sqlite_where=where, postgresql_where=where)
    op.create_index(
        "groups_open",
        "groups",
        ["created"],
        sqlite_where=sa.text("sealed = 0"),
        postgresql_where=sa.text("NOT sealed"),
    )
