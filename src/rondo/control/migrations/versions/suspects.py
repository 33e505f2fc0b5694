"""Requests in flight at a crash run in small cohorts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("requests", sa.Column("cohort", sa.Integer))
    queued = sa.text("state = 'queued'")
    op.drop_index("requests_waiting", "requests")
    columns = ["base", "priority", "turn", "id", "cohort"]
    op.create_index("requests_waiting", "requests", columns, sqlite_where=queued, postgresql_where=queued)
    where = sa.text("state = 'queued' AND cohort IS NOT NULL")
    op.create_index(
        "requests_suspect",
        "requests",
        ["base", "priority", sa.text("cohort DESC"), "turn", "id"],
        sqlite_where=where,
        postgresql_where=where,
    )
