"""Queued requests in the gateway: the durable queue of `control` behind HTTP.

Inputs are requests of the native queue API and of the generate API; outputs are groups of queued requests, results,
leases for workers, and summaries.

    service.py  submission, waiting for results, rights, maintenance
    loader.py   models for which requests wait and that no engine serves are loaded
    prompts.py  the generate API's prompts as queued requests, and results in its shape
    objects.py  files, batches, responses and conversations, and the tasks that drive batches
    rates.py    requests, tokens and FLOPs of the last minute
    streams.py  responses of any length, part by part
    arrays.py   JSON arrays of any size, element by element

Read `service.py` first; the routes are in `routes/queued/`.
"""
