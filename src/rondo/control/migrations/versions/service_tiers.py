"""Highest service tier of a key's requests."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("keys", sa.Column("service_tier", sa.Text, nullable=False, server_default="default"))
