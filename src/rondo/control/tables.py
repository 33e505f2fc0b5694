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
    sa.Column("cohort", sa.Integer),
)
"""`cohort`: the number of requests that may run together with this one, itself included, because an engine or a worker
crashed while it was in flight among others. NULL for any number."""
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
    sa.Column("service_tier", sa.Text, nullable=False, server_default="default"),
    sa.Column("parent", sa.Text),
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

files = sa.Table(
    "files",
    metadata,
    sa.Column("number", Big, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.BigInteger),
)
uploads = sa.Table(
    "uploads",
    metadata,
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
upload_parts = sa.Table(
    "upload_parts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("upload", sa.Text, sa.ForeignKey("uploads.id"), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
)
batches = sa.Table(
    "batches",
    metadata,
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
responses = sa.Table(
    "responses",
    metadata,
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
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("metadata", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
)
conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("number", Big, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("conversation", sa.Text, sa.ForeignKey("conversations.id"), nullable=False),
    sa.Column("item", sa.Text, nullable=False),
    sa.UniqueConstraint("conversation", "id", name="conversation_items_id"),
)

jobs = sa.Table(
    "jobs",
    metadata,
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
job_events = sa.Table(
    "job_events",
    metadata,
    sa.Column("id", Big, primary_key=True),
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.id"), nullable=False),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("level", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)

evals = sa.Table(
    "evals",
    metadata,
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
eval_runs = sa.Table(
    "eval_runs",
    metadata,
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
eval_items = sa.Table(
    "eval_items",
    metadata,
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
registry = sa.Table(
    "registry",
    metadata,
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
registry_aliases = sa.Table(
    "registry_aliases",
    metadata,
    sa.Column("number", Big, primary_key=True),
    sa.Column("alias", sa.Text, nullable=False),
    sa.Column("model", sa.Text, sa.ForeignKey("registry.id"), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("promoted", sa.Boolean, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
)

engines = sa.Table(
    "engines",
    metadata,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("url", sa.Text),
    sa.Column("draining", sa.Boolean, nullable=False),
)
"""`url`: NULL unless the engine was registered by API."""

QUEUED = requests.c.state == sa.literal_column("'queued'")
"""A literal: neither database uses a partial index for `state = ?`."""


def _partial(name: str, *columns: sa.ColumnElement[object], where: sa.ColumnElement[bool]) -> None:
    sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


sa.Index("requests_place", requests.c.group_id, requests.c.place, unique=True)
_partial(
    "requests_waiting",
    requests.c.base,
    requests.c.priority,
    requests.c.turn,
    requests.c.id,
    requests.c.cohort,
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
_partial(
    "requests_suspect",
    requests.c.base,
    requests.c.priority,
    requests.c.cohort.desc(),
    requests.c.turn,
    requests.c.id,
    where=sa.and_(QUEUED, requests.c.cohort.is_not(None)),
)
_partial("requests_due", requests.c.until, where=requests.c.until.is_not(None))
_partial(
    "requests_dead",
    requests.c.id,
    where=requests.c.state == sa.literal_column("'dead'"),
)
_partial("groups_open", groups.c.created, where=sa.not_(groups.c.sealed))
_partial("groups_ended", groups.c.ended, where=groups.c.ended.is_not(None))
sa.Index("groups_owner", groups.c.owner, groups.c.id)
sa.Index("files_owner", files.c.owner, files.c.number)
_partial("files_expires", files.c.expires, where=files.c.expires.is_not(None))
sa.Index("uploads_owner", uploads.c.owner)
sa.Index("uploads_expires", uploads.c.expires)
sa.Index("upload_parts_upload", upload_parts.c.upload)
sa.Index("batches_owner", batches.c.owner, batches.c.number)
_partial("batches_running", batches.c.number, where=batches.c.ended.is_(None))
_partial("responses_expires", responses.c.expires, where=responses.c.expires.is_not(None))
_partial("responses_running", responses.c.number, where=responses.c.queued_as.is_not(None))
sa.Index("responses_owner", responses.c.owner, responses.c.number)
sa.Index("conversation_items_place", conversation_items.c.conversation, conversation_items.c.number)
sa.Index("jobs_owner", jobs.c.owner, jobs.c.number)
sa.Index("jobs_digest", jobs.c.digest)
_partial("jobs_open", jobs.c.number, where=sa.or_(jobs.c.ended.is_(None), jobs.c.launched))
sa.Index("job_events_job", job_events.c.job, job_events.c.id)
sa.Index("evals_owner", evals.c.owner, evals.c.number)
sa.Index("eval_runs_eval", eval_runs.c.eval, eval_runs.c.number)
_partial("eval_runs_running", eval_runs.c.number, where=eval_runs.c.ended.is_(None))
sa.Index("registry_name", registry.c.name, registry.c.number)
sa.Index("registry_job", registry.c.job)
sa.Index("registry_aliases_alias", registry_aliases.c.alias, registry_aliases.c.number)
