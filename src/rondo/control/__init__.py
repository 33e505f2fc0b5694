"""Durable state and the work queue, in SQLite with a write-ahead log that is synced before a request is acknowledged.

Inputs are prompts with priorities and deadlines, API keys, and reports of workers. Outputs are leases for workers,
results, dead letters, usage by day, and the choice of an engine for a request. The package imports `base`, `client` and
`plan` alone: every other package runs as a process and is reached over HTTP.

    store.py    the only access to the database
    schema.py   tables, as numbered migrations that are never edited
    queue.py    the durable queue: every prompt is one row
    leases.py   work handed to a worker for a limited time; a finish needs the lease's name
    rows.py     SQL of the queue within a transaction
    work.py     types of queued, leased and finished work
    keys.py     API keys, stored as hashes, with roles and scopes
    limits.py   token buckets: requests and tokens a minute for each key
    router.py   choice of the engine with the least pending work and the longest cached prefix
    prefixes.py estimate of the prefixes in each engine's cache
    config.py   settings

Read `store.py`, then `queue.py`.
"""
