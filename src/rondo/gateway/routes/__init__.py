"""Routes of the gateway itself, for FastAPI: each names the scope or the role that it needs.

security.py       dependencies that find and check the key, and the table of routes made from them
keys.py           API keys and usage
engines.py        engines: list, register, remove, drain, live events; models: list, load, unload
files.py          files: upload, list, download, delete; `form.py` streams the form of an upload
uploads.py        uploads in parts
batches.py        batches of requests
responses.py      stored responses: list, retrieve, input items, cancel, delete
completions.py    stored chat completions: list, retrieve, messages, update, delete
conversations.py  conversations and their items
proxied.py        description of the proxied routes: the request types of the engine server
health.py         liveness, readiness, components, metrics, logs
page.py           the web page
queued/           the durable queue and the generate API
training/         training jobs, fine-tuning and graders
"""
