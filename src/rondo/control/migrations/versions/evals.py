"""Evals, their runs and output items; keys that stand for another one."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("keys", sa.Column("parent", sa.Text))
    op.create_table(
        "evals",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("source_config", sa.Text, nullable=False),
        sa.Column("criteria", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("updated", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "eval_runs",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("eval", sa.Text, sa.ForeignKey("evals.id"), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("queued_as", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("graded", sa.Integer, nullable=False),
        sa.Column("passed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("by_criterion", sa.Text, nullable=False),
        sa.Column("usage", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
    )
    op.create_table(
        "eval_items",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("run", sa.Text, sa.ForeignKey("eval_runs.id"), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
        sa.Column("sample", sa.Text),
        sa.Column("results", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("run", "place", name="eval_items_place"),
    )
    op.create_index("evals_owner", "evals", ["owner", "number"])
    op.create_index("eval_runs_eval", "eval_runs", ["eval", "number"])
    unended = sa.text("ended IS NULL")
    op.create_index(
        "eval_runs_running", "eval_runs", ["number"], sqlite_where=unended, postgresql_where=unended
    )
