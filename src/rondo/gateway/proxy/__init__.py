"""A model request on its way to an engine.

Inputs are ASGI requests; outputs are the engine's response, byte for byte, and the tokens it used.

    fields.py    the few fields that routing needs; the engine validates the rest
    forward.py   key, limits, retries before the first byte
    ticket.py    a request on its way: service tier, owner, and the state of its wait
    gate.py      an engine for a request, at once or after a wait in the queue
    upstream.py  requests to engines and checks of them
    pool.py      connections to engines: used again, opened few at a time, closed when idle or stalled
    connection.py  one HTTP connection: a request, and its response in parts
    cache_events.py  prefixes that engines store and drop
    stored.py    requests to `/v1/responses` that are stored or continue others
    recorder.py  their responses, stored as they pass
    completions.py  chat completions with `store: true`, stored as they pass
    trace.py     the span of a request
    metering.py  token counts in JSON responses and event streams
    counters.py  counters for Prometheus
"""
