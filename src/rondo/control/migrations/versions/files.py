"""Files, uploads, batches, responses and conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _files()
    _batches()
    _responses()
    _indexes()


def _files() -> None:
    op.create_table(
        "files",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("expires_after", sa.BigInteger),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("file", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("upload", sa.Text, sa.ForeignKey("uploads.id"), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )


def _batches() -> None:
    op.create_table(
        "batches",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("input_file", sa.Text, nullable=False),
        sa.Column("window", sa.Text, nullable=False),
        sa.Column("output_expires_after", sa.BigInteger),
        sa.Column("metadata", sa.Text),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("errors", sa.Text),
        sa.Column("queued_as", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("written", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("input_read", sa.BigInteger, nullable=False),
        sa.Column("output_bytes", sa.BigInteger, nullable=False),
        sa.Column("error_bytes", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger),
        sa.Column("cancelled", sa.BigInteger),
        sa.Column("finalized", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.UniqueConstraint("owner", "idempotency_key", name="batches_idempotency"),
    )


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("conversation", sa.Text),
        sa.Column("queued_as", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "conversation_items",
        sa.Column("number", Big, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("conversation", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
        sa.Column("item", sa.Text, nullable=False),
        sa.UniqueConstraint("conversation", "id", name="conversation_items_id"),
    )


def _indexes() -> None:
    def partial(name: str, table: str, columns: list[str], where: str) -> None:
        op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))

    op.create_index("files_owner", "files", ["owner", "number"])
    partial("files_expires", "files", ["expires"], "expires IS NOT NULL")
    op.create_index("uploads_owner", "uploads", ["owner"])
    op.create_index("uploads_expires", "uploads", ["expires"])
    op.create_index("upload_parts_upload", "upload_parts", ["upload"])
    op.create_index("batches_owner", "batches", ["owner", "number"])
    partial("batches_running", "batches", ["number"], "ended IS NULL")
    partial("responses_expires", "responses", ["expires"], "expires IS NOT NULL")
    partial("responses_running", "responses", ["number"], "queued_as IS NOT NULL")
    op.create_index("conversation_items_place", "conversation_items", ["conversation", "number"])
