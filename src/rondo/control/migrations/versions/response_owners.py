"""Index of stored responses by owner."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_index("responses_owner", "responses", ["owner", "number"])
