"""Steps by which Alembic creates and changes the tables of `control/tables.py`. A released step never changes."""

HEAD = "0010"
"""The newest step; numbers increase and have four digits. A store at this revision opens without importing Alembic."""
