"""Jobs and their events."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("launcher", sa.Text, nullable=False),
        sa.Column("launched", sa.Boolean, nullable=False),
        sa.Column("hash", sa.Text),
        sa.Column("result", sa.Text, unique=True),
        sa.Column("error", sa.Text),
        sa.Column("not_before", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
    )
    op.create_table(
        "job_events",
        sa.Column("id", Big, primary_key=True),
        sa.Column("job", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("jobs_owner", "jobs", ["owner", "number"])
    op.create_index("jobs_digest", "jobs", ["digest"])
    unended = sa.text("ended IS NULL OR launched")
    op.create_index("jobs_open", "jobs", ["number"], sqlite_where=unended, postgresql_where=unended)
    op.create_index("job_events_job", "job_events", ["job", "id"])
