"""Queue, keys, usage, duties and the clock."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _queue()
    _queue_indexes()
    _keys()
    op.create_table(
        "duties",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "clock",
        sa.Column("boot", sa.Text, primary_key=True),
        sa.Column("origin", sa.BigInteger, nullable=False),
    )


def _queue() -> None:
    op.create_table(
        "groups",
        sa.Column("id", Big, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("unfinished", sa.Integer, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.UniqueConstraint("owner", "idempotency_key", name="groups_idempotency"),
    )
    op.create_table(
        "requests",
        sa.Column("id", Big, primary_key=True),
        sa.Column("group_id", Big, sa.ForeignKey("groups.id"), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("base", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("lease", sa.Text),
        sa.Column("until", sa.BigInteger),
        sa.Column("reason", sa.Text),
        # On PostgreSQL each lease leaves a dead entry at the head of the index on waiting requests: vacuum often.
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_cost_delay": 0},
    )
    for table, column, nullable in (("bodies", "body", False), ("results", "result", True)):
        op.create_table(
            table,
            sa.Column("id", Big, primary_key=True, autoincrement=False),
            sa.Column(column, sa.Text, nullable=nullable),
        )
    op.create_table(
        "counts",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )


def _queue_indexes() -> None:
    def partial(name: str, table: str, columns: list[str], where: str) -> None:
        op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))

    op.create_index("requests_place", "requests", ["group_id", "place"], unique=True)
    partial("requests_waiting", "requests", ["base", "priority", "turn", "id"], "state = 'queued'")
    partial("requests_share", "requests", ["base", "priority", "owner", "turn"], "state = 'queued'")
    partial("requests_due", "requests", ["until"], "until IS NOT NULL")
    partial("groups_ended", "groups", ["ended"], "ended IS NOT NULL")
    op.create_index("groups_owner", "groups", ["owner", "id"])


def _keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("tokens_per_minute", sa.BigInteger),
        sa.Column("tokens_per_day", sa.BigInteger),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
    )
    op.create_table(
        "usage",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
    )
