"""Registry of models and their aliases."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "registry",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("base", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("files", sa.Text),
        sa.Column("digest", sa.Text),
        sa.Column("bytes", sa.BigInteger),
        sa.Column("lineage", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "registry_aliases",
        sa.Column("number", Big, primary_key=True),
        sa.Column("alias", sa.Text, nullable=False),
        sa.Column("model", sa.Text, sa.ForeignKey("registry.id"), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("promoted", sa.Boolean, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_index("registry_name", "registry", ["name", "number"])
    op.create_index("registry_job", "registry", ["job"])
    op.create_index("registry_aliases_alias", "registry_aliases", ["alias", "number"])
