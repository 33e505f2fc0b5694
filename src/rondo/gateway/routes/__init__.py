"""Routes of the gateway itself, for FastAPI: each names the scope or the role that it needs.

security.py  dependencies that find and check the key, and the table of routes made from them
keys.py      API keys and usage
engines.py   engines: list, register, remove, drain, live events
health.py    liveness, readiness, components, metrics
models.py    models of all engines
page.py      the web page
"""
