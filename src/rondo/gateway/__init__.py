"""Gateway: one URL in front of engines, with API keys, limits, routing, health, metrics and the web page. Torch-free.

Inputs are HTTP requests of clients and the addresses of engines, which are engine servers or any OpenAI-compatible
server. Outputs are the engines' responses, passed through byte for byte, and the gateway's own routes.

    config.py  settings
    app.py     the ASGI application: proxied routes directly, all others through FastAPI; start it with `serve.py`
    auth.py    a key's identity, scopes and models, and the table that says which scope each route needs
    fleet.py   engines: registration, health checks, reported load, draining
    sources/   engines of the supervisor, of a Kubernetes service or of a DNS name
    proxy/     a model request: its routing fields, choice of an engine, retries, metering of tokens
    queued/    the durable queue: submission, results, workers, the generate API, files, batches, stored responses
    training/  training jobs: specifications from requests, jobs as the APIs show them
    routes/    routes of the gateway itself: queue, objects, jobs, keys, usage, engines, health, logs, models, the page
    description.py   `/openapi.json`
    serve.py   runs the gateway on its port

A model request passes `app.py`, `proxy/forward.py`, `auth.py`, `proxy/gate.py` and `proxy/upstream.py`. Read
`proxy/forward.py` first.
"""
