"""Run by Alembic for each command; `store/migrate.py` passes the connection."""

from alembic import context

from rondo.control.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
context.run_migrations()
