"""Tables of the store. The steps in `migrations/` create them; a test compares the two.

Timestamps are integers: microseconds since the epoch. State rows are small and change often; bodies and results are
large, are written once, and therefore have tables of their own.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""SQLite allocates row ids only for a primary key of type INTEGER, which has 64 bits there."""

groups = sa.Table(
    "groups",
    metadata,
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
requests = sa.Table(
    "requests",
    metadata,
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
)
bodies = sa.Table(
    "bodies",
    metadata,
    sa.Column("id", Big, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
results = sa.Table(
    "results",
    metadata,
    sa.Column("id", Big, primary_key=True, autoincrement=False),
    sa.Column("result", sa.Text),
)
counts = sa.Table(
    "counts",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
)
keys = sa.Table(
    "keys",
    metadata,
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
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
)
duties = sa.Table(
    "duties",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
)
clock = sa.Table(
    "clock",
    metadata,
    sa.Column("boot", sa.Text, primary_key=True),
    sa.Column("origin", sa.BigInteger, nullable=False),
)

QUEUED = requests.c.state == sa.literal_column("'queued'")
"""A literal: neither database uses a partial index for `state = ?`."""


def _partial(name: str, *columns: sa.Column[object], where: sa.ColumnElement[bool]) -> None:
    sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


sa.Index("requests_place", requests.c.group_id, requests.c.place, unique=True)
_partial(
    "requests_waiting",
    requests.c.base,
    requests.c.priority,
    requests.c.turn,
    requests.c.id,
    where=QUEUED,
)
_partial(
    "requests_share",
    requests.c.base,
    requests.c.priority,
    requests.c.owner,
    requests.c.turn,
    where=QUEUED,
)
_partial("requests_due", requests.c.until, where=requests.c.until.is_not(None))
_partial("groups_ended", groups.c.ended, where=groups.c.ended.is_not(None))
sa.Index("groups_owner", groups.c.owner, groups.c.id)
