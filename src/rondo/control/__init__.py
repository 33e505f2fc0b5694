"""Durable state: queue, jobs, keys and objects of clients, in SQLite or PostgreSQL.

Inputs are prompts with priorities and deadlines, API keys, and reports of workers. Outputs are leases for workers,
results, dead letters, usage by day, and the choice of an engine for a request. The package imports `base`, `client` and
`plan` alone: every other package runs as a process and is reached over HTTP.

    store/      transactions on SQLite or PostgreSQL, clocks, duties, backup
    tables.py   tables; migrations/ has the steps that create and change them
    queue/      the durable queue: every prompt is one row, leased by workers
    jobs/       training jobs: states, launchers, reconciler
    keys.py     API keys, stored as hashes, with roles and scopes
    key.py      an API key and its rights
    usage.py    tokens and requests by key, day and model; the daily quota
    limits.py   token buckets: requests and tokens a minute for each key
    objects/    files, uploads, batches, stored responses and conversations of owners
    routing/    choice of an engine for a request, and the queue of requests that wait for one
    config.py   settings

Read `store/store.py`, then `queue/queue.py`.
"""
