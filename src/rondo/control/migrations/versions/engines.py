"""Engines that were registered or drained by API."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "engines",
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("url", sa.Text),
        sa.Column("draining", sa.Boolean, nullable=False),
    )
