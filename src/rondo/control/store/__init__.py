"""Durable state in SQLite or PostgreSQL. Start reading at `store.py`."""
